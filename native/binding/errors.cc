// Exceptions into JavaScript errors with a code, and back-stops for LibTorch's.
#include "binding/errors.h"

#include <c10/util/Exception.h>

#include <new>
#include <string_view>

#include "base/error.h"

namespace troupe::binding {

namespace {

// LibTorch's CPU allocator reports exhaustion as a plain c10::Error.
bool is_cpu_out_of_memory(std::string_view text) {
  return text.find("can't allocate memory") != text.npos || text.find("not enough memory") != text.npos;
}

}  // namespace

NativeError current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return {error_code_name(error.code()), error.what()};
  } catch (const c10::OutOfMemoryError& error) {
    return {error_code_name(ErrorCode::kOutOfMemory), error.what_without_backtrace()};
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    return {error_code_name(is_cpu_out_of_memory(text) ? ErrorCode::kOutOfMemory : ErrorCode::kInternal),
            text};
  } catch (const std::bad_alloc&) {
    return {error_code_name(ErrorCode::kOutOfMemory), "the process ran out of memory"};
  } catch (const std::exception& error) {
    return {error_code_name(ErrorCode::kInternal), error.what()};
  } catch (...) {
    return {error_code_name(ErrorCode::kInternal), "an exception of unknown type left the native core"};
  }
}

Napi::Value make_error(Napi::Env env, const NativeError& error) {
  Napi::Object value = Napi::Error::New(env, error.message).Value();
  value.Set("troupeCode", error.code);
  return value;
}

Napi::Value enter_async(const Napi::CallbackInfo& info, Body body) {
  const auto rejected = [&info](Napi::Value reason) -> Napi::Value {
    const auto deferred = Napi::Promise::Deferred::New(info.Env());
    deferred.Reject(reason);
    return deferred.Promise();
  };
  try {
    return body(info);
  } catch (const Napi::Error& error) {  // raised by JavaScript: a getter of an argument threw
    return rejected(error.Value());
  } catch (...) {
    return rejected(make_error(info.Env(), current_error()));
  }
}

Napi::Value enter_sync(const Napi::CallbackInfo& info, Body body) {
  try {
    return body(info);
  } catch (const Napi::Error&) {
    throw;
  } catch (...) {
    throw Napi::Error(info.Env(), make_error(info.Env(), current_error()));
  }
}

}  // namespace troupe::binding

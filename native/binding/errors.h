// Errors across the boundary.
#pragma once

#include <string>

#include "binding/setup.h"

namespace troupe::binding {

// A C++ exception on its way to another thread.
struct NativeError {
  std::string code;  // an ErrorCode of ts/errors.ts
  std::string message;
};

// Inside a catch block: what the current exception means to a caller in TypeScript.
NativeError current_error();

// A plain Error with the property `troupeCode`; ts/native turns it into a TroupeError.
Napi::Value make_error(Napi::Env env, const NativeError& error);

using Body = Napi::Value (*)(const Napi::CallbackInfo&);

// Entry points. A function that answers with a promise reports even a bad argument by rejecting it, so
// that callers have one place to look; a synchronous function throws.
Napi::Value enter_async(const Napi::CallbackInfo& info, Body body);
Napi::Value enter_sync(const Napi::CallbackInfo& info, Body body);

template <Body body>
void export_async(Napi::Env env, Napi::Object exports, const char* name) {
  exports.Set(name, Napi::Function::New(
                        env, [](const Napi::CallbackInfo& info) { return enter_async(info, body); }, name));
}

template <Body body>
void export_sync(Napi::Env env, Napi::Object exports, const char* name) {
  exports.Set(name, Napi::Function::New(
                        env, [](const Napi::CallbackInfo& info) { return enter_sync(info, body); }, name));
}

}  // namespace troupe::binding

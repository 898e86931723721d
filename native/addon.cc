// The entry of the addon: registers what native/binding exports.
#include <c10/util/Logging.h>

#include "binding/binding.h"
#include "binding/environment.h"

namespace {

Napi::Object init(Napi::Env env, Napi::Object exports) {
  c10::initLogging();  // LibTorch looks at TORCH_CPP_LOG_LEVEL when it is told to, not by itself
  troupe::binding::Environment::install(env);
  troupe::binding::export_info(env, exports);
  troupe::binding::export_group(env, exports);
  troupe::binding::export_engine(env, exports);
  troupe::binding::export_rollout(env, exports);
  troupe::binding::export_profiler(env, exports);
  troupe::binding::export_simulation(env, exports);
  troupe::binding::export_losses(env, exports);
  troupe::binding::export_head(env, exports);
  return exports;
}

}  // namespace

NODE_API_MODULE(troupe, init)

// A verb of an engine as a promise.
#pragma once

#include <utility>

#include "binding/dto.h"
#include "binding/engine_handle.h"
#include "binding/environment.h"

namespace troupe::binding {

// Runs verb(engine) on the engine thread. A call queued before close() still runs; one that meets an
// engine freed under it (teardown) cannot happen, because teardown drops the queue first.
template <typename Verb, typename Convert>
Napi::Promise call_engine(const Napi::CallbackInfo& info, const Field& handle, Verb verb, Convert convert) {
  return Environment::of(info.Env())
      .call(
          info.Env(),
          [slot = open_slot(handle), verb = std::move(verb)]() mutable { return verb(slot->engine()); },
          convert);
}

}  // namespace troupe::binding

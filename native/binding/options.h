// Options from JavaScript.
#pragma once

#include "binding/dto.h"
#include "engine/engine.h"

// Option DTOs of ts/native/bridge.ts -> the structs of engine/engine.h. Types only: what values make
// sense is decided by the public TypeScript API, and by the core once more.
namespace troupe::binding {

EngineOptions read_engine_options(const Field& dto);
StateKinds read_state_kinds(const Field& dto);
PolicyLossOptions read_policy_loss_options(const Field& dto);
ValueLossOptions read_value_loss_options(const Field& dto);
SftLossOptions read_sft_loss_options(const Field& dto);
ops::Quantization read_quantization(const Field& dto);

}  // namespace troupe::binding

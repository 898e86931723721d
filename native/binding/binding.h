// What each binding file exports; addon.cc calls them all.
#pragma once

#include "binding/setup.h"

// One function per group of exports; the order is that of ts/native/bridge.ts.
namespace troupe::binding {

void export_info(Napi::Env env, Napi::Object exports);
void export_group(Napi::Env env, Napi::Object exports);
void export_engine(Napi::Env env, Napi::Object exports);
void export_rollout(Napi::Env env, Napi::Object exports);
void export_profiler(Napi::Env env, Napi::Object exports);
void export_simulation(Napi::Env env, Napi::Object exports);
void export_losses(Napi::Env env, Napi::Object exports);
void export_head(Napi::Env env, Napi::Object exports);

}  // namespace troupe::binding

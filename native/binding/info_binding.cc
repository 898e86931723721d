// What this build and machine can do: versions, devices, instruction sets.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <limits>

#include "binding/binding.h"
#include "binding/errors.h"
#include "profiler/profiler.h"

namespace troupe::binding {

namespace {

int device_count() {
  return at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
}

// buildInfo(): NativeBuildInfo
Napi::Value build_info(const Napi::CallbackInfo& info) {
  auto dto = Napi::Object::New(info.Env());
  dto.Set("version", TROUPE_VERSION);
  dto.Set("libtorch", TROUPE_LIBTORCH_VERSION);
  dto.Set("cuda", static_cast<bool>(TROUPE_CUDA));
  dto.Set("deviceCount", device_count());
  dto.Set("threads", at::get_num_threads());
  dto.Set("profiler", has_profiler());
  return dto;
}

double peak_rss() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
  return static_cast<double>(usage.ru_maxrss);
#else
  return static_cast<double>(usage.ru_maxrss) * 1024;  // kilobytes on Linux
#endif
}

// memoryInfo(): NativeMemoryInfo
Napi::Value memory_info(const Napi::CallbackInfo& info) {
  auto dto = Napi::Object::New(info.Env());
  int64_t allocated = 0;
  int64_t max_allocated = 0;
  if (device_count() > 0) {
    auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::DeviceType::CUDA));
    if (allocator != nullptr && allocator->initialized()) {
      const auto stats = allocator->getDeviceStats(/*device=*/0);  // a worker sees one device
      allocated = stats.allocated_bytes[0].current;
      max_allocated = stats.allocated_bytes[0].peak;
    }
  }
  dto.Set("peakRss", peak_rss());
  dto.Set("allocated", static_cast<double>(allocated));
  dto.Set("maxAllocated", static_cast<double>(max_allocated));
  return dto;
}

// Freed blocks stay in the process, so that the next micro-batch does not pay for fresh pages again. All
// threads share the main arena: glibc gives empty parts of the others back whatever these settings say.
// keepFreedMemory(): void
Napi::Value keep_freed_memory(const Napi::CallbackInfo& info) {
#ifdef __GLIBC__
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 1 << 26);
#endif
  return info.Env().Undefined();
}

}  // namespace

void export_info(Napi::Env env, Napi::Object exports) {
  export_sync<build_info>(env, exports, "buildInfo");
  export_sync<memory_info>(env, exports, "memoryInfo");
  export_sync<keep_freed_memory>(env, exports, "keepFreedMemory");
}

}  // namespace troupe::binding

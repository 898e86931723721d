// How much memory keys and values may take.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace troupe {

// On a GPU: `share` of its memory less what this process holds there, and no more than is free, once what
// LibTorch keeps without use has gone back (return_free_memory). On a CPU: a quarter of `share` of the memory
// of the machine (or of the control group that the process is in).
int64_t cache_budget(at::Device device, double share);

// Gives what LibTorch keeps of a device's memory, and nobody uses, back to the device. Nothing on a CPU.
void return_free_memory(at::Device device);

// The least memory, in bytes, that the control groups of a process (`groups`: its /proc/PID/cgroup) and those
// above them may take; no limit: the largest number. Both versions, mounted at `root`; a group that is not
// there, as from inside of a container, has none.
int64_t control_group_limit(const std::string& groups, const std::string& root);

}  // namespace troupe

// What LibTorch leaves out for meta tensors.
#pragma once

namespace troupe {

// So that code which computes on a device runs on meta tensors, in this process, from now on: rows by index,
// numbers (true, or 0) and copies (zeros) for the host. A second call does nothing.
void install_meta_kernels();

}  // namespace troupe

// Launches as CUDA accepts or refuses them.
#pragma once

#include "cuda_on_host/grid.h"

namespace troupe::test::cuda_on_host {

// body() as every thread, where the grid is one that a GPU takes; else cudaGetLastError() says why not.
void launch(const char* kernel, const Grid& grid, const std::function<void()>& body);

}  // namespace troupe::test::cuda_on_host

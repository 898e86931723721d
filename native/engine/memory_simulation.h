// What one rank of any number holds at most in every verb, without any memory for it.
#pragma once

#include "engine/memory_phases.h"

namespace troupe {

struct SimulatedMemory {
  StateBytes state;
  int64_t parameters = 0;  // of the whole model
  std::vector<PhasePeak> phases;
};

// The engine itself (engine/memory_phases.h) on meta tensors and a communicator without peers, with its
// allocations counted: see [Note: simulated memory] in base/simulated.h. Of a verb as many micro-batches are
// run as it takes (enough_sequences). On a GPU (`gpu`) only what lies there is counted, in the blocks of
// LibTorch's allocator; the kernels' own temporaries are taken from the shapes of the CUDA sources, of which
// a CPU has no way to know more. A rollout has the pages that
// its scheduler holds at most, in a run to the end without a model.
//
// `options.num_threads` threads (0: LibTorch's choice) compute on a CPU. Left out: what an allocator keeps,
// and the process itself. kInvalidModel / kInvalidArgument as create_engine. Counts allocations in this
// process from now on.
SimulatedMemory simulate_memory(const EngineOptions& options, int64_t rank, int64_t size,
                                const MemoryWork& work, bool gpu);

}  // namespace troupe

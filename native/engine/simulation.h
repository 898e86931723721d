// What one rank of any number holds and sends, without running the others.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"

namespace troupe {

// A group of parameters as it lies on the ranks, in elements.
struct SimulatedGroup {
  std::string name;
  int64_t whole = 0;  // its flat buffer, with all padding
  int64_t own = 0;    // what one rank holds
};

// Collectives of one kind that move the same thing.
struct SimulatedCollective {
  std::string phase;  // forward, backward, ...
  std::string name;   // all_gather, ...
  std::string subject;
  int64_t count = 0;
  int64_t bytes = 0;  // that this rank sends in all of them
};

struct Simulation {
  StateBytes state;
  std::vector<SimulatedGroup> groups;
  std::vector<SimulatedCollective> collectives;  // in the order of their first call
};

// The work of one rank, or of the sequence group that it is in.
struct SimulatedWork {
  int64_t micro_batches = 1;
  // For sequence groups; elsewhere they move nothing between ranks.
  int64_t rows = 0;       // of the decoder in each micro-batch
  int64_t responses = 0;  // response tokens of all micro-batches
};

// One optimiser step (of a token-local policy loss, or of a critic), as one rank of `size` takes part in it:
// the store, the sharding, the decoder's order of acquiring and releasing and the exchange around attention
// of the engine itself, on meta tensors and a communicator without peers. Nothing is allocated or computed,
// so the shapes may be those of any model. kInvalidModel / kInvalidArgument as create_engine.
Simulation simulate_update(const EngineOptions& options, int64_t rank, int64_t size,
                           const SimulatedWork& work);

}  // namespace troupe

// What one rank of any number holds and sends, without running the others.
#pragma once

#include <string>
#include <vector>

#include "engine/memory_phases.h"

namespace troupe {

// A group of parameters as it lies on the ranks, in elements.
struct SimulatedGroup {
  std::string name;
  int64_t whole = 0;  // its flat buffer, with all padding
  int64_t own = 0;    // what one rank holds
};

// Collectives of one kind that move the same thing.
struct SimulatedCollective {
  std::string axis;   // along which it goes: tp, dp, pp, ...; all: every rank of the engine
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

// One optimiser step (of a token-local policy loss, or of a critic) of a mini-batch `load`, or a pass over it
// by an engine without an optimiser, as one rank of `size` takes part in it: the engine itself on meta
// tensors and a communicator without peers. Nothing is computed, so the shapes may be those of any model. All
// sequences are alike and have a gradient; of many micro-batches a few are run, and what each further one
// adds is taken to be the same. kInvalidModel / kInvalidArgument as create_engine. On a GPU micro-batches are
// padded.
Simulation simulate_update(const EngineOptions& options, int64_t rank, int64_t size, const SequenceLoad& load,
                           bool gpu);

}  // namespace troupe

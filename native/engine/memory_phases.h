// The verbs of an engine one after the other, with what each allocates counted.
#pragma once

#include <string>
#include <vector>

#include "base/counting_allocator.h"
#include "engine/engine.h"

namespace troupe {

// Of an image, the tokens that stand for it: rows, and columns.
struct ImageLoad {
  int64_t height = 0, width = 0;
  int64_t tokens() const { return height * width; }
};
using ImageLoads = std::vector<ImageLoad>;

// Sequences of one rank, or of the sequence group that it is in: alike, and with prompts and images of their
// own.
struct SequenceLoad {
  int64_t count = 0;     // 0: the verb is left out
  int64_t length = 0;    // tokens, prompt and response
  int64_t response = 0;  // response tokens
  ImageLoads images;     // of each prompt, of whose tokens theirs are the last
};

struct RolloutLoad {
  std::string verb;  // as it is reported: generate | validate
  int64_t prompts = 0;
  int64_t n = 1;  // samples per prompt
  int64_t prompt = 0, response = 0;
  ImageLoads images;  // of each prompt
};

// What a policy's loss has beside the tokens.
struct LossLoad {
  bool kl = false;    // log-probs of a reference
  int64_t top_k = 0;  // of a teacher: its likeliest tokens in the place of each; 0: none
  bool router_balance = false, router_z = false;  // losses of the routers of a mixture
};

// What is said of the experts of tokens (TokenBatch::routed_experts).
enum class RoutingLoad {
  kNone,
  kRecorded,  // by log-probs; updates are given it
  kGiven,     // to both: a rollout recorded it
};

struct MemoryWork {
  std::vector<TensorFile> load;  // the weights; see [Note: files without a path] in checkpoint/tensor_file.h
  SequenceLoad inference;        // compute_log_prob with entropy, or compute_values
  int64_t top_k = 0;             // log-probs: of so many of the likeliest tokens, too
  SequenceLoad update;           // one mini-batch: update_policy, or update_critic
  LossLoad loss;
  RoutingLoad routing = RoutingLoad::kNone;
  std::string save;  // the files of a checkpoint begin with this; empty: without a path
  std::vector<RolloutLoad> rollouts;
  // Of the one rollout that they share. It gets as many pages as they use at most, within kv_cache_bytes.
  RolloutOptions limits;
};

// The most that was held in a verb.
struct PhasePeak {
  std::string verb;  // create | load | inference | update | save | generate | validate
  int64_t bytes = 0;
  MemoryParts parts{};                         // of `bytes`
  MemoryPart last = MemoryPart::kActivations;  // what the allocation was for that made it so much
};

// Runs what `work` says of creation, loading, log-probs (or values), one update, saving of parameters and
// moments, and rollouts with an engine of these options; `count` must be that of the calling thread
// (CountAllocations). The engine is gone afterwards. On meta tensors a rollout ends with the first step that
// is of decodes alone: later ones hold no more.
std::vector<PhasePeak> run_phases(const EngineOptions& options, std::shared_ptr<Communicator> comm,
                                  const MemoryWork& work, ByteCount& count);

// `n` samples of each of the prompts, which differ. device: of the engine; meta: images have no pixels.
std::vector<RolloutRequest> requests_of(const RolloutLoad& load, const ModelConfig& model, at::Device device);

// Pages that the scheduler of a rollout holds at most while it serves these requests, of which none ends
// early. kInvalidArgument for requests that a rollout with these limits can never serve.
int64_t pages_held(const RolloutLoad& load, const RolloutOptions& limits, const ModelConfig& model,
                   at::ScalarType dtype);

// One mini-batch of an update of policy or critic; log-probs with entropy, or values, with the `top_k`
// likeliest tokens. `options`: of the engine.
void run_update(Engine& engine, const EngineOptions& options, const SequenceLoad& load, const LossLoad& loss,
                RoutingLoad routing);
void run_inference(Engine& engine, const EngineOptions& options, const SequenceLoad& load, int64_t top_k,
                   RoutingLoad routing);

// How many sequences fit into as many micro-batches of a verb as it takes until a further one holds no more
// than those before it: two, from the second of which on there are the gradients of the first; in a pipeline
// all that are in flight at a time, and one. Never more than `load.count`.
int64_t enough_sequences(const SequenceLoad& load, const EngineOptions& options);

}  // namespace troupe

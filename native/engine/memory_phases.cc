// The verbs of an engine on a batch of full micro-batches.
#include "engine/memory_phases.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "engine/rank_engine.h"
#include "model/expert_routing.h"
#include "model/image_patches.h"
#include "rollout/cache_sizes.h"
#include "rollout/kv_cache.h"
#include "rollout/scheduler.h"
#include "rollout/state_cache.h"

namespace troupe {

namespace {

// Images of prompt number `index`, which are on no other.
std::vector<Image> images_of(const ImageLoads& loads, int64_t index, const ModelConfig& model,
                             at::Device device) {
  std::vector<Image> images;
  for (size_t i = 0; i < loads.size(); ++i) {
    const int64_t side = image_tokens(*model.vision).side;
    const int64_t height = loads[i].height * side, width = loads[i].width * side;
    const auto number = index * static_cast<int64_t>(loads.size()) + static_cast<int64_t>(i);
    const at::Tensor pixels =
        at::empty({height, width, 3}, at::device(device.is_meta() ? at::kMeta : at::kCPU).dtype(at::kByte));
    if (device.is_meta()) {
      images.push_back({height, width, pixels, static_cast<uint64_t>(number)});
      continue;
    }
    pixels.fill_(number % 256);
    std::memcpy(pixels.mutable_data_ptr(), &number, sizeof(number));
    images.push_back(make_image(height, width, pixels, "image"));
  }
  return images;
}

// Writes prompt number `index` into its tokens: no two are the same. None of the tokens is of an image.
void write_text(int64_t index, const ModelConfig& model, int32_t* tokens, int64_t count) {
  const int64_t words = model.vision ? model.vocab_size - 1 : model.vocab_size;
  for (int64_t t = 0; t < count; ++t, index /= words) {
    const int64_t word = index % words;
    tokens[t] = static_cast<int32_t>(model.vision && word >= model.vision->image_token ? word + 1 : word);
  }
}

// The same with the tokens of its images at the end, which tell prompts apart where there is no text.
void write_prompt(int64_t index, const ModelConfig& model, const ImageLoads& images, int32_t* tokens,
                  int64_t count) {
  int64_t of_images = 0;
  for (const ImageLoad& image : images) of_images += image.tokens();
  write_text(index, model, tokens, count - of_images);
  for (int64_t t = count - of_images; t < count; ++t)
    tokens[t] = static_cast<int32_t>(model.vision->image_token);
}

// Sequences whose prompts differ, so that none is shared.
TokenBatch batch_of(const SequenceLoad& load, const EngineOptions& options) {
  const ModelConfig& model = options.model;
  const at::Tensor tokens = at::zeros({load.count, load.length}, at::kInt);
  auto token = tokens.accessor<int32_t, 2>();
  for (int64_t i = 0; i < load.count; ++i) {
    write_prompt(i, model, load.images, token[i].data(), load.length - load.response);
    // Tokens of all kinds behind it: a router of experts looks at them.
    for (int64_t t = load.length - load.response; t < load.length; ++t)
      token[i][t] = static_cast<int32_t>((i * 7919 + t * 31) % model.vocab_size);
  }
  TokenBatch batch{tokens.view({-1}), at::arange(load.count + 1, at::kInt) * load.length,
                   at::full({load.count}, load.length - load.response, at::kInt)};
  for (int64_t i = 0; i < load.count && !load.images.empty(); ++i) {
    std::vector<int64_t>& numbers = batch.images.of_sequence.emplace_back();
    for (Image& image : images_of(load.images, i, model, options.device)) {
      numbers.push_back(static_cast<int64_t>(batch.images.all.size()));
      batch.images.all.push_back(std::move(image));
    }
  }
  return batch;
}

// Choices of every layer that fall on all experts equally often.
at::Tensor experts_of(const TokenBatch& batch, const ModelConfig& model) {
  const RoutingShape shape = routing_shape(model);
  const at::Tensor of_tokens = at::arange(batch.tokens.numel(), at::kLong).mul_(shape.top_k);
  const at::Tensor of_choices = at::arange(shape.top_k, at::kLong).repeat({shape.layers});
  const at::Tensor choices = of_tokens.unsqueeze(1) + of_choices.unsqueeze(0);
  return choices.remainder(shape.experts).to(shape.dtype()).view({-1}).view(at::kByte);
}

// The model with the heads of one rank that decodes, and the layers of the stage that has most of them: by it
// the pages of all stages are counted.
ModelConfig largest_stage(const EngineOptions& options, const RolloutOptions& limits, int64_t world) {
  const ParallelDims dims = parallel_dims(options).resolved(world);
  const DecoderPart part =
      limits.tensor_parallel > 1 ? DecoderPart{.tp = limits.tensor_parallel} : decoder_part(options, dims, 0);
  validate(options.model, part);
  const ModelConfig model = own_heads(options.model, part);
  const std::vector<StageRange> parts = pipeline_parts(model.num_layers, options.pipeline);
  const MixerLayers most = most_layers(model, parts, options.pipeline.stages, limits.predicts());
  return with_layers(rollout_config(limits, model), most);
}

// A budget that does not hold one page counts as one that does.
CacheSizes sizes_within(RolloutOptions limits, const ModelConfig& model, at::ScalarType dtype) {
  if (limits.max_positions == 0) limits.max_positions = model.max_positions;
  limits.kv_cache_bytes = std::max(limits.kv_cache_bytes,
                                   KvCache::page_bytes(model, dtype) + StateCache::slot_bytes(model, dtype));
  return cache_sizes(limits, model, dtype);
}

class Phases {
 public:
  Phases(const EngineOptions& options, std::shared_ptr<Communicator> comm, const MemoryWork& work,
         ByteCount& count)
      : options_(options), comm_(std::move(comm)), work_(work), count_(count) {}

  std::vector<PhasePeak> run() {
    phase("create", [&] {
      const AllocateFor state(MemoryPart::kState);
      engine_ = std::make_unique<RankEngine>(options_, comm_);
    });
    phase("load", [&] {
      engine_->import_tensors(TensorKind::kParam, work_.load);
      engine_->export_tensors(TensorKind::kParam, {});  // of no file, but from here on all weights are there
    });
    if (work_.inference.count > 0)
      phase("inference",
            [&] { run_inference(*engine_, options_, work_.inference, work_.top_k, work_.routing); });
    if (work_.update.count > 0)
      phase("update", [&] { run_update(*engine_, options_, work_.update, work_.loss, work_.routing); });
    phase("save", [&] { save(); });
    for (const RolloutLoad& load : work_.rollouts) phase(load.verb.c_str(), [&] { roll_out(load); });
    return std::move(peaks_);
  }

 private:
  template <typename Body>
  void phase(const char* verb, Body&& body) {
    count_.restart_peak();
    body();
    peaks_.push_back({verb, count_.peak(), count_.parts_at_peak(), count_.last_at_peak()});
  }

  // Everything that is trained, parameter by parameter, in float32.
  void save() {
    for (const TensorKind kind : {TensorKind::kParam, TensorKind::kExpAvg, TensorKind::kExpAvgSq}) {
      if (kind != TensorKind::kParam && !options_.optim) continue;
      TensorFile file;
      if (!work_.save.empty()) file.path = work_.save + std::to_string(static_cast<int>(kind));
      for (const ParameterInfo& info : engine_->parameters()) {
        if (kind == TensorKind::kExpAvgSq && options_.optim->muon && info.matrix) continue;
        TensorSlice slice;
        slice.param = slice.label = info.name;
        slice.rows = info.shape[0];
        slice.offset = file.size;
        slice.dtype = "F32";
        file.tensors.push_back(slice);
        file.size += std::accumulate(info.shape.begin(), info.shape.end(), int64_t{4}, std::multiplies<>());
      }
      engine_->export_tensors(kind, {file});
    }
  }

  void open_rollout() {
    RolloutOptions limits = work_.limits;
    const ModelConfig cached = largest_stage(options_, limits, comm_->size());
    int64_t pages = 1;
    for (const RolloutLoad& load : work_.rollouts)
      pages = std::max(pages, pages_held(load, limits, cached, options_.dtype));
    limits.state_slots = sizes_within(limits, cached, options_.dtype).slots;
    limits.kv_cache_bytes = pages * KvCache::page_bytes(cached, options_.dtype) +
                            limits.state_slots * StateCache::slot_bytes(cached, options_.dtype);
    engine_->open_rollout(limits);
    opened_ = true;
  }

  void roll_out(const RolloutLoad& load) {
    if (!opened_) open_rollout();
    engine_->begin_rollout(0);
    RolloutCommands commands;  // of no time: one step for each turn
    commands.submit = requests_of(load, options_.model, options_.device);
    RolloutTurn turn;
    int64_t computed = 0;
    do {
      turn = engine_->rollout_turn(std::exchange(commands, {}));
      for (const RolloutOutput& output : turn.outputs)
        require(output.error.empty(), ErrorCode::kInvalidArgument, output.error);
      const int64_t rows = turn.stats.computed_tokens - std::exchange(computed, turn.stats.computed_tokens);
      if (options_.device.is_meta() && rows <= turn.stats.running) break;
    } while (!turn.idle);
    for (uint64_t id = 0; !turn.idle && id < static_cast<uint64_t>(load.prompts * load.n); ++id)
      commands.abort.push_back(id);
    if (!turn.idle) engine_->rollout_turn(std::move(commands));
    engine_->park_rollout(false);
  }

  const EngineOptions& options_;
  std::shared_ptr<Communicator> comm_;
  const MemoryWork& work_;
  ByteCount& count_;
  std::unique_ptr<RankEngine> engine_;
  std::vector<PhasePeak> peaks_;
  bool opened_ = false;
};

}  // namespace

std::vector<RolloutRequest> requests_of(const RolloutLoad& load, const ModelConfig& model,
                                        at::Device device) {
  std::vector<RolloutRequest> requests;
  std::vector<Image> images;
  for (int64_t sample = 0; sample < load.prompts * load.n; ++sample) {
    const int64_t prompt = sample / load.n;
    if (sample % load.n == 0) images = images_of(load.images, prompt, model, device);
    RolloutRequest request;
    request.images = images;
    request.id = request.seed = static_cast<uint64_t>(sample);
    request.prompt.resize(static_cast<size_t>(load.prompt));
    write_prompt(prompt, model, load.images, request.prompt.data(), load.prompt);
    request.sampling.max_new_tokens = load.response;
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<PhasePeak> run_phases(const EngineOptions& options, std::shared_ptr<Communicator> comm,
                                  const MemoryWork& work, ByteCount& count) {
  return Phases(options, std::move(comm), work, count).run();
}

int64_t pages_held(const RolloutLoad& load, const RolloutOptions& limits, const ModelConfig& model,
                   at::ScalarType dtype) {
  const int64_t positions = limits.max_positions == 0 ? model.max_positions : limits.max_positions;
  const int64_t most = limits.max_sequences * KvCache::pages_for(positions);
  const int64_t one =
      std::min(most, KvCache::pages_for(load.prompt + load.response - 1));  // which may always run
  const CacheSizes sizes = sizes_within(limits, model, dtype);
  PagePool pool(std::clamp(sizes.pages, one, most));
  Scheduler scheduler({sizes.sequences, limits.max_step_tokens, positions, limits.chunked_prefill,
                       limits.prefix_caching, sizes.slots},
                      pool);
  for (RolloutRequest& request : requests_of(load, model, at::kMeta)) scheduler.submit(std::move(request));
  int64_t held = 0, finished = 0;
  for (StepPlan plan = scheduler.plan(); !plan.runs.empty(); plan = scheduler.plan()) {
    held = std::max(held, pool.held());
    // All pages are held, or a whole generation of sequences has come and gone: later ones hold no more.
    if (held == pool.size() || finished >= sizes.sequences) break;
    scheduler.computed(plan);
    const auto next_token = [&](Sequence& sequence) {
      sequence.tokens.push_back(static_cast<int32_t>(sequence.arrival % 2));
      if (sequence.response_length() < load.response) return;
      scheduler.finish(sequence);
      ++finished;
    };
    for (const PlannedRun& run : plan.runs) {
      if (run.sequence->remaining() > 0) continue;  // a part of a prompt
      next_token(*run.sequence);
      for (Sequence* copy : run.copies) next_token(*copy);
    }
    scheduler.take_outputs();
  }
  return held;
}

void run_inference(Engine& engine, const EngineOptions& options, const SequenceLoad& load, int64_t top_k,
                   RoutingLoad routing) {
  TokenBatch batch = batch_of(load, options);
  if (routing == RoutingLoad::kGiven) batch.routed_experts = experts_of(batch, options.model);
  if (options.model.head == HeadKind::kLm) {
    engine.compute_log_prob(batch, 1, true, false, false, routing == RoutingLoad::kRecorded, top_k);
  } else {
    engine.compute_values(batch);
  }
}

void run_update(Engine& engine, const EngineOptions& options, const SequenceLoad& load, const LossLoad& asked,
                RoutingLoad routing) {
  TokenBatch tokens = batch_of(load, options);
  if (routing != RoutingLoad::kNone) tokens.routed_experts = experts_of(tokens, options.model);
  const at::Tensor column = at::full({load.count * load.response}, 0.5);
  const at::Tensor mask = at::ones({column.numel()}, at::kByte);
  MiniBatches mini;
  mini.offsets = {0, load.count};
  mini.global_tokens = {static_cast<double>(column.numel())};
  mini.global_sequences = {static_cast<double>(load.count)};
  if (options.model.head != HeadKind::kLm) {
    ValueLossOptions loss;
    if (asked.router_z) loss.router_z_loss_coef = 1;
    engine.update_critic({tokens, mask, column, column.clone()}, mini, loss);
    return;
  }
  PolicyBatch batch;
  batch.tokens = tokens;
  batch.response_mask = mask;
  batch.old_log_probs = column;
  batch.advantages = column.clone();
  PolicyLossOptions loss;
  loss.use_kl_loss = asked.kl;
  if (asked.kl) batch.ref_log_probs = column.clone();
  if (asked.router_balance) loss.router_aux_loss_coef = 1;
  if (asked.router_z) loss.router_z_loss_coef = 1;
  if (asked.top_k > 0) {
    loss.distillation.emplace().top_k = asked.top_k;
    batch.teacher_ids = at::zeros({column.numel(), asked.top_k}, at::kInt);
    batch.teacher_log_probs = at::full({column.numel(), asked.top_k}, -1.0);
  }
  engine.update_policy(batch, mini, loss, 1);
}

int64_t enough_sequences(const SequenceLoad& load, const EngineOptions& options) {
  const int64_t stages = options.pipeline.stages;
  const int64_t each = std::max<int64_t>(1, options.max_tokens / std::max<int64_t>(1, load.length - 1));
  const int64_t all = (load.count + each - 1) / each;
  // With several chunks per rank, forwards run ahead of backwards by groups of `stages` micro-batches.
  int64_t enough = options.pipeline.chunks == 1 ? stages + 1 : 3 * stages;
  if (options.pipeline_order == PipelineOrder::kGPipe && stages > 1) enough = all;
  return std::min(load.count, std::min(all, enough) * each);
}

}  // namespace troupe

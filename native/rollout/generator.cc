// Continuous batching: prefill, decoding steps, samples that end and begin.
#include "rollout/generator.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "rollout/decode_attention.h"
#include "rollout/kv_cache.h"
#include "rollout/prompts.h"
#include "rollout/random.h"
#include "rollout/batch_sampler.h"

namespace troupe {
namespace {

// A prompt that has run: its keys and values, and where its samples begin.
struct Prompt {
  KvSegment keys;
  at::Tensor hidden;         // [H] the last block's output at the last token
  int64_t samples_left = 0;  // that have not ended
};

// A sample that is being decoded.
struct Sequence {
  int64_t sample;
  int64_t prompt;
  KvSegment own;  // the sampled tokens that have been through the decoder
  std::vector<int32_t> tokens;
  std::vector<float> log_probs;
  bool ended = false;
};

// Buffers of a step, for as many rows as may ever decode together.
struct StepBuffers {
  at::Tensor x;                  // [rows, H]
  at::Tensor qkv;                // [rows, (Q+2K)*D]
  at::Tensor attention;          // [rows, Q*D]
  at::Tensor tokens, positions;  // [rows] int32, on the CPU
  at::Tensor logits;             // [logit rows, V] float32
};

class Generation {
 public:
  Generation(Decoder& decoder, const PromptList& prompts, const SamplingOptions& options,
             const GenerateLimits& limits);
  GenerateResult run(const std::function<void()>& check_abort);

 private:
  void admit();
  bool fits(int64_t prompt_pages, int64_t sequences) const;
  bool prefill_from(int64_t first);
  void prefill(int64_t first, int64_t count);
  void decode(int64_t rows);
  void sample_all(int64_t decoded);
  void append(Sequence& sequence, const Sampled& sampled) const;
  void retire();
  GenerateResult collect() const;

  Decoder& decoder_;
  const ModelConfig& config_;
  const PromptList& prompts_;
  const SamplingOptions& options_;
  const GenerateLimits& limits_;
  const int64_t tile_;
  std::vector<int64_t> cache_layers_;  // by layer: its place in the cache; -1: another rank's
  KvCache cache_;
  StepBuffers buffers_;

  std::deque<Prompt> ready_;  // prompts that have run and have samples left, in order
  int64_t first_ready_ = 0;   // index of the first of them
  std::vector<Sequence> running_;
  std::vector<Sequence> done_;
  int64_t next_sample_ = 0;

  // Pages are promised before they are allocated: what has begun can always end, and nothing ever
  // has to be computed twice.
  int64_t page_budget_;
  int64_t pages_per_sequence_;
  int64_t promised_pages_ = 0;
};

at::TensorOptions cpu_int() {
  return at::TensorOptions().dtype(at::kInt);
}

// Of this rank's layers.
KvCache cache_of(const Decoder& decoder) {
  ModelConfig config = decoder.config();
  config.num_layers = static_cast<int64_t>(decoder.own_layers().size());
  return {config, decoder.dtype(), decoder.device()};
}

std::vector<int64_t> cache_layers(const Decoder& decoder) {
  std::vector<int64_t> places(static_cast<size_t>(decoder.config().num_layers), -1);
  int64_t next = 0;
  for (const int64_t layer : decoder.own_layers()) places[static_cast<size_t>(layer)] = next++;
  return places;
}

Generation::Generation(Decoder& decoder, const PromptList& prompts, const SamplingOptions& options,
                       const GenerateLimits& limits)
    : decoder_(decoder),
      config_(decoder.config()),
      prompts_(prompts),
      options_(options),
      limits_(limits),
      tile_(decoder.decode_row_tile()),
      cache_layers_(cache_layers(decoder)),
      cache_(cache_of(decoder)),
      // As if all layers were here: stages of a pipeline must admit the same samples.
      page_budget_(limits.kv_cache_bytes / KvCache(config_, decoder.dtype(), decoder.device()).page_bytes()),
      // The last sampled token never goes through the decoder.
      pages_per_sequence_(KvCache::pages_for(options.max_new_tokens - 1)) {
  const int64_t rows = round_up(std::min(limits.max_sequences, prompts.num_samples()), tile_);
  const int64_t row_bytes = config_.vocab_size * static_cast<int64_t>(sizeof(float));
  const int64_t logit_rows = std::clamp(limits.logits_bytes / row_bytes / tile_ * tile_, tile_, rows);
  const auto compute = at::TensorOptions().dtype(decoder.dtype()).device(decoder.device());
  // Padding rows are computed too: zeros keep them finite.
  buffers_.x = at::zeros({rows, config_.hidden_size}, compute);
  buffers_.qkv = at::zeros({rows, config_.qkv_size()}, compute);
  buffers_.attention = at::zeros({rows, config_.q_size()}, compute);
  buffers_.tokens = at::zeros({rows}, cpu_int());
  buffers_.positions = at::zeros({rows}, cpu_int());
  buffers_.logits = at::empty({logit_rows, config_.vocab_size}, compute.dtype(at::kFloat));
}

GenerateResult Generation::run(const std::function<void()>& check_abort) {
  while (next_sample_ < prompts_.num_samples() || !running_.empty()) {
    check_abort();
    const auto decoded = static_cast<int64_t>(running_.size());
    admit();
    if (decoded > 0) decode(decoded);
    sample_all(decoded);
    retire();
  }
  return collect();
}

// Room in the cache for prompts of so many pages and for so many more sequences?
bool Generation::fits(int64_t prompt_pages, int64_t sequences) const {
  return promised_pages_ + prompt_pages + sequences * pages_per_sequence_ <= page_budget_;
}

// Fills free places with the next samples.
void Generation::admit() {
  while (static_cast<int64_t>(running_.size()) < limits_.max_sequences &&
         next_sample_ < prompts_.num_samples()) {
    const int64_t prompt = next_sample_ / prompts_.n();
    if (prompt == first_ready_ + static_cast<int64_t>(ready_.size()) && !prefill_from(prompt)) return;
    if (!running_.empty() && !fits(0, 1)) return;
    promised_pages_ += pages_per_sequence_;
    running_.push_back({.sample = next_sample_, .prompt = prompt, .own = {}, .tokens = {}, .log_probs = {}});
    ++next_sample_;
  }
}

// Runs prompt `first` and those after it that fit beside it. False: no room before a sequence ends.
bool Generation::prefill_from(int64_t first) {
  int64_t tokens = prompts_.length(first);
  int64_t pages = KvCache::pages_for(tokens);
  if (!running_.empty() && !fits(pages, 1)) return false;
  int64_t count = 1;
  // Others only if all their samples find room too: prompts that wait must not crowd out samples.
  while (first + count < prompts_.size()) {
    const int64_t length = prompts_.length(first + count);
    const int64_t more_pages = pages + KvCache::pages_for(length);
    if (tokens + length > limits_.prefill_tokens || !fits(more_pages, (count + 1) * prompts_.n())) break;
    tokens += length;
    pages = more_pages;
    ++count;
  }
  promised_pages_ += pages;
  prefill(first, count);
  return true;
}

void Generation::prefill(int64_t first, int64_t count) {
  PackedSequences packed;
  packed.offsets = {0};
  for (int64_t i = first; i < first + count; ++i)
    packed.offsets.push_back(packed.offsets.back() + prompts_.length(i));
  packed.tokens = prompts_.tokens(first, count).to(decoder_.device());
  std::vector<at::Tensor> positions;
  std::vector<Prompt> group(static_cast<size_t>(count));
  for (size_t i = 0; i < group.size(); ++i) {
    const int64_t length = prompts_.length(first + static_cast<int64_t>(i));
    positions.push_back(at::arange(length, cpu_int()));
    cache_.grow(group[i].keys, length);
    group[i].samples_left = prompts_.n();
  }
  packed.positions = at::cat(positions).to(decoder_.device());
  const auto rows_of = [&](const at::Tensor& all, size_t i) {
    return all.narrow(0, packed.offsets[i], packed.offsets[i + 1] - packed.offsets[i]);
  };
  const at::Tensor hidden = decoder_.prefill(packed, [&](int64_t layer, const at::Tensor& qkv) {
    const auto store = [&](int64_t i) {
      const auto index = static_cast<size_t>(i);
      cache_.store(cache_layers_[static_cast<size_t>(layer)], group[index].keys, 0, rows_of(qkv, index));
    };
    if (qkv.is_cpu()) {
      parallel_items(count, store);
    } else {
      for (int64_t i = 0; i < count; ++i) store(i);
    }
  });
  for (size_t i = 0; i < group.size(); ++i) {
    group[i].hidden = hidden.select(0, packed.offsets[i + 1] - 1).clone();
    ready_.push_back(std::move(group[i]));
  }
}

// Takes the last token of each of the first `rows` sequences through the layers; x holds the results.
void Generation::decode(int64_t rows) {
  const int64_t padded = round_up(rows, tile_);
  int32_t* tokens = buffers_.tokens.data_ptr<int32_t>();
  int32_t* positions = buffers_.positions.data_ptr<int32_t>();
  std::fill(tokens, tokens + padded, 0);
  std::fill(positions, positions + padded, 0);
  std::vector<CachedKeys> keys(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    Sequence& sequence = running_[static_cast<size_t>(row)];
    cache_.grow(sequence.own, sequence.own.length + 1);
    const KvSegment& prompt = ready_[static_cast<size_t>(sequence.prompt - first_ready_)].keys;
    keys[static_cast<size_t>(row)] = {&prompt, &sequence.own};
    tokens[row] = sequence.tokens.back();
    positions[row] = static_cast<int32_t>(prompt.length + sequence.own.length - 1);
  }
  const DecodeRows step(std::move(keys), cache_);
  const at::Tensor x = buffers_.x.narrow(0, 0, padded);
  const at::Tensor qkv = buffers_.qkv.narrow(0, 0, padded);
  const at::Tensor attention = buffers_.attention.narrow(0, 0, padded);
  const at::Tensor at_positions = buffers_.positions.narrow(0, 0, padded).to(decoder_.device());
  decoder_.embed(buffers_.tokens.narrow(0, 0, padded).to(decoder_.device()), at_positions, x);
  ops::AttentionSpec spec{.num_heads = config_.num_heads,
                          .num_kv_heads = config_.num_kv_heads,
                          .head_dim = config_.head_dim,
                          .scale = config_.attention_scale,
                          .softcap = config_.attention_softcap};
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    decoder_.enter_layer(layer, x);
    const int64_t cache_layer = cache_layers_[static_cast<size_t>(layer)];
    if (cache_layer < 0) continue;
    spec.window = config_.sliding_windows[static_cast<size_t>(layer)];
    decoder_.attention_inputs(layer, x, at_positions, qkv);
    decode_attention(spec, cache_, cache_layer, step, qkv, attention);
    decoder_.block_output(layer, x, attention, x);
  }
}

// Samples one token for every running sequence: the first `decoded` from their rows of x, those that
// have just been admitted from their prompt.
void Generation::sample_all(int64_t decoded) {
  const auto rows = static_cast<int64_t>(running_.size());
  for (int64_t row = decoded; row < rows; ++row) {
    const int64_t prompt = running_[static_cast<size_t>(row)].prompt;
    buffers_.x.select(0, row).copy_(ready_[static_cast<size_t>(prompt - first_ready_)].hidden);
  }
  const int64_t chunk = buffers_.logits.size(0);
  const SamplerOptions sampler{
      .temperature = options_.temperature, .top_k = options_.top_k, .top_p = options_.top_p};
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    const int64_t padded = round_up(count, tile_);
    const at::Tensor logits = buffers_.logits.narrow(0, 0, padded);
    decoder_.logits(buffers_.x.narrow(0, begin, padded), logits);
    std::vector<double> uniforms(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const Sequence& sequence = running_[static_cast<size_t>(begin + i)];
      uniforms[static_cast<size_t>(i)] =
          uniform(prompts_.seed(sequence.sample), static_cast<uint64_t>(sequence.tokens.size()));
    }
    const std::vector<Sampled> sampled = sample_rows(logits.narrow(0, 0, count), sampler, uniforms);
    for (int64_t i = 0; i < count; ++i)
      append(running_[static_cast<size_t>(begin + i)], sampled[static_cast<size_t>(i)]);
  }
}

void Generation::append(Sequence& sequence, const Sampled& sampled) const {
  const auto step = static_cast<int64_t>(sequence.tokens.size());
  require(sampled.finite, ErrorCode::kNonFinite, "[generate] expected finite logits but prompt ",
          sequence.prompt, ", sample ", sequence.sample % prompts_.n(), ", response token ", step,
          " has NaN or infinity: check the weights, or the learning rate of the last update");
  sequence.tokens.push_back(sampled.token);
  sequence.log_probs.push_back(sampled.log_prob);
  const auto& stops = options_.stop_token_ids;
  sequence.ended = step + 1 == options_.max_new_tokens ||
                   std::find(stops.begin(), stops.end(), sampled.token) != stops.end();
}

// Takes out the sequences that have ended, and the prompts whose samples have all ended.
void Generation::retire() {
  size_t kept = 0;
  for (Sequence& sequence : running_) {
    if (!sequence.ended) {
      if (&running_[kept] != &sequence) running_[kept] = std::move(sequence);
      ++kept;
      continue;
    }
    cache_.release(sequence.own);
    promised_pages_ -= pages_per_sequence_;
    Prompt& prompt = ready_[static_cast<size_t>(sequence.prompt - first_ready_)];
    if (--prompt.samples_left == 0) {
      promised_pages_ -= static_cast<int64_t>(prompt.keys.pages.size());
      cache_.release(prompt.keys);
      prompt.hidden.reset();
    }
    done_.push_back(std::move(sequence));
  }
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(kept), running_.end());
  while (!ready_.empty() && ready_.front().samples_left == 0) {
    ready_.pop_front();
    ++first_ready_;
  }
}

GenerateResult Generation::collect() const {
  std::vector<const Sequence*> by_sample(static_cast<size_t>(prompts_.num_samples()));
  for (const Sequence& sequence : done_) by_sample[static_cast<size_t>(sequence.sample)] = &sequence;
  int64_t total = 0;
  for (const Sequence& sequence : done_) total += static_cast<int64_t>(sequence.tokens.size());
  GenerateResult result;
  result.tokens = at::empty({total}, cpu_int());
  result.log_probs = at::empty({total}, at::TensorOptions().dtype(at::kFloat));
  result.offsets = at::empty({prompts_.num_samples() + 1}, cpu_int());
  int32_t* tokens = result.tokens.data_ptr<int32_t>();
  float* log_probs = result.log_probs.data_ptr<float>();
  int32_t* offsets = result.offsets.data_ptr<int32_t>();
  *offsets = 0;
  for (const Sequence* sequence : by_sample) {
    tokens = std::copy(sequence->tokens.begin(), sequence->tokens.end(), tokens);
    log_probs = std::copy(sequence->log_probs.begin(), sequence->log_probs.end(), log_probs);
    offsets[1] = offsets[0] + static_cast<int32_t>(sequence->tokens.size());
    ++offsets;
  }
  return result;
}

}  // namespace

GenerateResult generate(Decoder& decoder, const PromptBatch& prompts, const SamplingOptions& options,
                        const std::function<void()>& check_abort, const GenerateLimits& limits) {
  const at::NoGradGuard no_grad;
  check_options(options);
  const PromptList list(prompts, decoder.config(), options.max_new_tokens);
  if (list.size() == 0) {
    return {at::empty({0}, cpu_int()), at::zeros({1}, cpu_int()),
            at::empty({0}, at::TensorOptions().dtype(at::kFloat))};
  }
  const struct Decoding {
    explicit Decoding(Decoder& decoder) : decoder(decoder) { decoder.begin_decoding(); }
    ~Decoding() { decoder.end_decoding(); }
    Decoder& decoder;
  } decoding(decoder);
  return Generation(decoder, list, options, limits).run(check_abort);
}

}  // namespace troupe

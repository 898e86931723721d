// What the layouts of a decoder's parts are made with.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/decoder_part.h"
#include "model/model_config.h"
#include "parameters/parameter_layout.h"

namespace troupe {

// Adds parameters to a layout, group by group, each cut for the ranks that share it.
class LayoutBuilder {
 public:
  // frozen: nothing of it is trained but a value head. config and part outlive this.
  LayoutBuilder(const ModelConfig& config, bool frozen, const DecoderPart& part)
      : c_(config), frozen_(frozen), part_(part) {}

 protected:
  // How a parameter is cut.
  struct Cut {
    size_t dimension;
    std::vector<CutBlock> blocks;  // none: every rank has all of it
    bool summed;                   // and finds a part of the gradient
  };
  static Cut everywhere(bool summed) { return {0, {}, summed}; }
  static Cut rows(std::vector<CutBlock> blocks) { return {0, std::move(blocks), false}; }
  static Cut columns(std::vector<CutBlock> blocks) { return {1, std::move(blocks), false}; }
  CutBlock even(int64_t size) const { return {size, (size + part_.tp - 1) / part_.tp, part_.tp_rank}; }
  std::vector<CutBlock> even(const std::vector<int64_t>& sizes) const {
    std::vector<CutBlock> blocks;
    for (const int64_t size : sizes) blocks.push_back(even(size));
    return blocks;
  }
  void group(const GroupSpec& spec) {
    target_ = all_.groups.size();
    all_.groups.push_back(spec);
  }
  void add(std::string name, const std::vector<int64_t>& shape, InitialValue initial, Cut cut,
           std::vector<int64_t> matrices = {}) {
    if (cut.blocks.empty()) {
      const int64_t extent = shape[cut.dimension];
      cut.blocks = {{extent, extent, 0, part_.tp, part_.tp_rank, cut.summed && part_.tp > 1}};
    }
    Placement placement = place(shape, cut.dimension, std::move(cut.blocks));
    all_.parameters.push_back({{std::move(name), local_shape(placement)},
                               target_,
                               initial,
                               std::move(placement),
                               std::move(matrices)});
  }
  void add_matrix(std::string name, int64_t out, int64_t in, Cut cut) {
    add(std::move(name), {out, in}, InitialValue::kNormal, std::move(cut));
  }
  // The weight of a linear layer, or of several one behind the other (matrices: rows of each).
  void add_weight(const std::string& name, int64_t out, int64_t in, Cut cut,
                  std::vector<int64_t> matrices = {}) {
    if (matrices.empty()) matrices = {out};
    add(name + ".weight", {out, in}, InitialValue::kNormal, std::move(cut), std::move(matrices));
  }
  void add_linear(const std::string& name, int64_t out, int64_t in, bool bias, const Cut& cut,
                  std::vector<int64_t> matrices = {}) {
    add_weight(name, out, in, cut, std::move(matrices));
    // Behind a matrix that is cut by columns the bias is added after the sum.
    if (bias) add(name + ".bias", {out}, InitialValue::kZero, cut.dimension == 0 ? cut : everywhere(false));
  }
  // Of a norm's weight: gemma scales by 1 + weight.
  InitialValue identity() const { return c_.norm_unit_offset ? InitialValue::kZero : InitialValue::kOne; }
  void add_scale(std::string name, int64_t size, bool summed) {
    add(std::move(name), {size}, identity(), everywhere(summed));
  }
  void add_norm(const std::string& name, bool summed) {
    add_scale(name + ".weight", c_.hidden_size, summed);
    if (c_.norm == NormKind::kLayer) {
      add(name + ".bias", {c_.hidden_size}, InitialValue::kZero, everywhere(summed));
    }
  }

  const ModelConfig& c_;
  const bool frozen_;
  const DecoderPart& part_;
  ParameterLayout all_;
  size_t target_ = 0;  // the group that parameters are added to
};

}  // namespace troupe

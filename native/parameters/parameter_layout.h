// Which parameters a store holds and in which groups they lie, as data: no meaning is read from a name.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "parameters/placement.h"

namespace troupe {

struct ParameterInfo {
  std::string name;  // Troupe's own name, see model/decoder_layout.h
  std::vector<int64_t> shape;
  bool matrix = false;  // the weight of a linear layer (ParameterSpec::matrices)

  int64_t size() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
};

// kMerged, for export alone: parameters of the base model with what the adapters add to them,
// W + scale B A in float32.
enum class TensorKind { kParam, kGrad, kExpAvg, kExpAvgSq, kMerged };

// Rows [begin, end).
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Where a parameter starts when no checkpoint provides it.
enum class InitialValue {
  kZero,
  kOne,
  kNormal,   // N(0, 0.02)
  kUniform,  // U(-1/sqrt(in), 1/sqrt(in)) of a matrix [out, in]
};

struct ParameterSpec {
  ParameterInfo info;  // with the shape of what this rank holds
  size_t group = 0;    // in ParameterLayout::groups
  InitialValue initial = InitialValue::kZero;
  Placement placement;
  // Of the weight of a linear layer the rows of each matrix in it, of the whole: of what is fused q, k and v,
  // gate and up each by itself. None: it is no such weight.
  std::vector<int64_t> matrices = {};
};

// Parameters that live and travel together.
struct GroupSpec {
  std::string name;
  std::optional<int64_t> layer = {};  // of the decoder, where it belongs to one
  bool trainable = true;              // false: frozen, because adapters are trained in its place
  std::optional<size_t> adapts = {};  // the group whose weights these adapters are on
  std::optional<int64_t> expert_rank =
      {};             // of the expert-parallel group: the one that has it; none: all of them
  int64_t stage = 0;  // of the pipeline: the one that answers for it
  bool here = true;   // false: known by names and shapes alone
  bool copy = false;  // here and kept equal, but another stage answers for it
  // Of what lies before the decoder's first layer: in its first stage.
  bool before_layers = false;
  // Not trained with the rest (torch's register_buffer): float32, and whole on every rank that has it.
  bool buffer = false;
};

// One adapter on a weight: the names of its parameters and the rows from `row` on, of what this rank holds,
// that it adds to.
struct AdapterParameters {
  std::string a, b;
  int64_t row = 0;
  double scale = 1;
};

struct ParameterLayout {
  std::string family;  // of the model, for messages
  std::vector<GroupSpec> groups;
  std::vector<ParameterSpec> parameters;  // in the order in which they lie in the groups' flat buffers
  std::map<std::string, std::vector<AdapterParameters>> adapters;  // by weight, in the order of the sites
};

}  // namespace troupe

// The weights of a generation whose ranks train with whole matrices.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "engine/engine.h"
#include "fsdp/sharding.h"
#include "megatron/exchange.h"
#include "model/transformer.h"
#include "parameters/parameter_store.h"

namespace troupe {

// One copy of the model over `tp` neighbouring ranks that decode together, each with its part of every matrix
// in the compute dtype (DecoderPart). Training shards its state over all ranks and gathers whole matrices one
// block at a time; a generation that gathered all of them would need room for the whole model on each rank.
class DecodingCopy {
 public:
  // Every rank of `world` at the same time. predicts: with the first layer that predicts further tokens.
  // kInvalidArgument where tp does not divide the ranks, or the model (validate()), or training cuts or
  // spreads the model itself.
  DecodingCopy(const EngineOptions& options, Communicator& world, int64_t tp, bool predicts);

  int64_t tp() const { return comm_->size(); }
  bool predicts() const { return decoder_.predicts(); }
  // Takes the memory.
  void reserve();
  // With the weights that `source` has now, group by group: of no more than two is there a whole on a rank.
  // Every rank at the same time, behind reserve().
  void fill(const ParameterStore& source, Sharding& sharding);
  // Gives their memory back.
  void release();

  Transformer& decoder() { return decoder_; }
  // The ranks that decode together.
  Communicator& comm() const { return *comm_; }

 private:
  std::unique_ptr<Communicator> comm_;
  ModelConfig model_;
  ParameterStore store_;
  Exchange exchange_;
  Transformer decoder_;
};

}  // namespace troupe

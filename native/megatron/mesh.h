// The communicators of one rank, one for each axis of a layout.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "megatron/parallel_dims.h"

namespace troupe {

// One rank's communicators with the ranks that share an axis with it. Whoever needs one is given it, or the
// mesh; none is global. An axis of one rank has a communicator that moves nothing; dp_cp() and dp() are the
// world where they are all of it, so that a model that only data parallelism spreads has no other connections
// than these; every other axis has its own, whose log counts what is sent along it.
class Mesh {
 public:
  // Every rank of `world` at the same time with the same dims. kInvalidArgument as ParallelDims::resolved.
  Mesh(std::shared_ptr<Communicator> world, const ParallelDims& dims);

  const ParallelDims& dims() const { return dims_; }  // resolved
  int64_t rank() const { return world_->rank(); }
  int64_t size() const { return world_->size(); }

  const std::shared_ptr<Communicator>& world() const { return world_; }
  const std::shared_ptr<Communicator>& tp() const { return on(Axis::kTp); }
  const std::shared_ptr<Communicator>& cp() const { return on(Axis::kCp); }
  const std::shared_ptr<Communicator>& dp() const { return on(Axis::kDp); }
  const std::shared_ptr<Communicator>& pp() const { return on(Axis::kPp); }
  const std::shared_ptr<Communicator>& dp_cp() const { return on(Axis::kDpCp); }
  const std::shared_ptr<Communicator>& ep() const { return on(Axis::kEp); }
  const std::shared_ptr<Communicator>& expert_dp() const { return on(Axis::kExpertDp); }
  const std::shared_ptr<Communicator>& on(Axis axis) const { return axes_[static_cast<size_t>(axis)]; }

  // By this rank, on the world and on each axis, whatever has used them.
  int64_t bytes_sent() const;
  // Ends the running collective of every axis, and all later ones. From any thread.
  void abort(const std::string& reason);

 private:
  std::shared_ptr<Communicator> world_;
  ParallelDims dims_;
  std::array<std::shared_ptr<Communicator>, 7> axes_;
};

}  // namespace troupe

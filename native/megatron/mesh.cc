// Splitting a world along its axes.
#include "megatron/mesh.h"

#include <set>

namespace troupe {

Mesh::Mesh(std::shared_ptr<Communicator> world, const ParallelDims& dims)
    : world_(std::move(world)), dims_(dims.resolved(world_->size())) {
  // Every rank has the same number for it, and engines are made in the same order on all of them.
  const std::string prefix = "engine" + std::to_string(world_->log().collectives()) + "/mesh/";
  std::shared_ptr<Communicator> alone;
  bool split = false;
  for (const Axis axis :
       {Axis::kTp, Axis::kCp, Axis::kDp, Axis::kPp, Axis::kDpCp, Axis::kEp, Axis::kExpertDp}) {
    std::shared_ptr<Communicator>& own = axes_[static_cast<size_t>(axis)];
    const std::vector<int64_t> ranks = dims_.peers(axis, world_->rank());
    if (ranks.size() == 1) {
      if (!alone) alone = make_local_communicator();
      own = alone;
    } else if (axis == Axis::kDpCp && dims_.cp == 1) {
      own = dp();
    } else if (axis == Axis::kExpertDp && dims_.ep == 1) {
      own = dp_cp();
    } else if ((axis == Axis::kDp || axis == Axis::kDpCp) && static_cast<int64_t>(ranks.size()) == size()) {
      own = world_;
    } else {
      own = world_->split(prefix + name_of(axis) + std::to_string(ranks.front()), ranks);
      split = true;
    }
  }
  if (split) world_->barrier({"start", "mesh"});  // the next engine's number is another one
}

int64_t Mesh::bytes_sent() const {
  std::set<const Communicator*> counted{world_.get()};
  int64_t bytes = world_->log().bytes_sent();
  for (const auto& own : axes_) {
    if (counted.insert(own.get()).second) bytes += own->log().bytes_sent();
  }
  return bytes;
}

void Mesh::abort(const std::string& reason) {
  world_->abort(reason);
  for (const auto& own : axes_) {
    if (own != world_) own->abort(reason);
  }
}

}  // namespace troupe

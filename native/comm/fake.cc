// Collectives without peers.
#include "comm/fake.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/counting_allocator.h"

namespace troupe {

std::unique_ptr<Communicator> FakeCommunicator::split(const std::string& name,
                                                      const std::vector<int64_t>& ranks) {
  const int64_t own = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
  auto part =
      std::make_unique<FakeCommunicator>(own, static_cast<int64_t>(ranks.size()), calls_, stages_gathers_);
  part->group_ = name;
  return part;
}

std::function<void()> FakeCommunicator::begin_all_gather(const at::Tensor& output, const at::Tensor& input) {
  record();
  output.view({size(), input.numel()}).copy_(input.unsqueeze(0));
  if (!stages_gathers_ || size() == 1) return {};
  const AllocateFor gathered(MemoryPart::kGathered);
  return [staged = at::empty_like(output)] {};
}

std::function<void()> FakeCommunicator::begin_all_to_all(const at::Tensor& output, const at::Tensor& input) {
  record();
  output.copy_(input);
  return {};
}

void FakeCommunicator::move_broadcast(const at::Tensor&, int64_t) {
  record();
}

void FakeCommunicator::move_send(const at::Tensor&, const at::Tensor&, int64_t) {
  record();
}

void FakeCommunicator::move_recv(const at::Tensor&, const at::Tensor&, int64_t) {
  record();
}

}  // namespace troupe

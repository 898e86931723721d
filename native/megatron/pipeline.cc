// What comes from a neighbour waits for its computation, and what goes to one for its message.
#include "megatron/pipeline.h"

#include <map>
#include <string>
#include <utility>

namespace troupe {

namespace {

// By chunk and micro-batch.
using Waiting = std::map<std::pair<int64_t, int64_t>, at::Tensor>;

at::Tensor take(Waiting& waiting, const PipelineStep& step) {
  const auto found = waiting.find({step.chunk, step.micro});
  if (found == waiting.end()) return {};
  at::Tensor tensor = std::move(found->second);
  waiting.erase(found);
  return tensor;
}

}  // namespace

void run_pipeline(const std::vector<PipelineStep>& steps, Communicator* pp, PipelineWork& work) {
  using Kind = PipelineStep::Kind;
  Waiting activations_in, activations_out, gradients_in, gradients_out;
  const auto keep = [](Waiting& waiting, const PipelineStep& step, at::Tensor tensor) {
    if (tensor.defined()) waiting[{step.chunk, step.micro}] = std::move(tensor);
  };
  const auto send = [&](Waiting& waiting, const PipelineStep& step, const char* phase) {
    const at::Tensor tensor = take(waiting, step);
    if (tensor.defined()) pp->send(tensor, step.peer, {phase, "micro-batch " + std::to_string(step.micro)});
  };
  const auto receive = [&](Waiting& waiting, const PipelineStep& step, const char* phase) {
    const at::Tensor tensor = work.message(step.micro);
    if (!tensor.defined()) return;
    pp->recv(tensor, step.peer, {phase, "micro-batch " + std::to_string(step.micro)});
    keep(waiting, step, tensor);
  };
  for (const PipelineStep& step : steps) {
    switch (step.kind) {
      case Kind::kForward:
        keep(activations_out, step, work.forward(step.chunk, step.micro, take(activations_in, step)));
        break;
      case Kind::kBackward:
        keep(gradients_out, step, work.backward(step.chunk, step.micro, take(gradients_in, step)));
        break;
      case Kind::kSendActivations: send(activations_out, step, "forward"); break;
      case Kind::kReceiveActivations: receive(activations_in, step, "forward"); break;
      case Kind::kSendGradient: send(gradients_out, step, "backward"); break;
      case Kind::kReceiveGradient: receive(gradients_in, step, "backward"); break;
    }
  }
}

}  // namespace troupe

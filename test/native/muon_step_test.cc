#include "fsdp/muon_step.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>
#include <string>

#include "check.h"
#include "model/decoder_layout.h"
#include "ranks.h"
#include "small_model.h"

// Steps of Muon on parameters of one process, each against its formula.

using namespace troupe;
using namespace troupe::test;

namespace {

OptimizerOptions options_of() {
  OptimizerOptions options;
  options.weight_decay = 0.1;
  options.muon = MuonOptions{.momentum = 0.9, .nesterov = true, .extra_scale = 0.3, .bfloat16 = false};
  return options;
}

ParameterStore store_of(const std::string& variant) {
  ParameterStore store(decoder_layout(small(variant, HeadKind::kLm)), at::kCPU, at::kBFloat16,
                       /*training=*/true, 1, {}, {}, {}, at::kFloat, /*muon=*/true);
  store.initialize_missing();
  return store;
}

void step_all(ParameterStore& store, const StepSize& size) {
  check_all(1, [&](Communicator& comm) {
    const at::NoGradGuard no_grad;
    for (size_t group = 0; group < store.groups().size(); ++group) {
      if (store.groups()[group].trained()) muon_step(store, group, options_of(), size, comm, comm);
    }
  });
}

std::map<std::string, at::Tensor> masters(const ParameterStore& store) {
  std::map<std::string, at::Tensor> all;
  for (const Parameter& parameter : store.all()) all[parameter.info.name] = parameter.master.clone();
  return all;
}

}  // namespace

TEST(the_input_projection_of_mamba_2_is_no_matrix_of_one_purpose) {
  ParameterStore store = store_of("nemotron_h");
  CHECK(store.at("layers.0.mamba.in.weight").matrices.empty());
  for (const char* matrix : {"layers.0.mamba.out", "layers.1.moe.latent.in", "layers.1.moe.shared.out"})
    CHECK(store.at(std::string(matrix) + ".weight").matrices.size() == 1);
}

TEST(each_matrix_moves_by_its_own_direction) {
  at::manual_seed(7);
  for (const std::string variant : {"qwen3_next", "gpt2"}) {
    ParameterStore store = store_of(variant);
    std::map<std::string, at::Tensor> momenta;
    int64_t several = 0, one_row = 0;
    for (const StepSize& size : {StepSize{1e-2, 0.5, 1}, StepSize{2e-2, 1, 2}}) {
      const auto before = masters(store);
      for (const Parameter& parameter : store.all()) {
        at::Tensor grad = parameter.grad;
        grad.normal_();
      }
      step_all(store, size);
      const MuonOptions muon = *options_of().muon;
      for (const Parameter& parameter : store.all()) {
        if (parameter.matrices.empty()) continue;
        const at::Tensor grad = parameter.grad * size.grad_scale;
        at::Tensor& momentum = momenta[parameter.info.name];
        momentum = momentum.defined() ? momentum * 0.9 + grad * 0.1 : grad * 0.1;
        at::Tensor expected = before.at(parameter.info.name) * (1 - size.lr * 0.1);
        int64_t row = 0;
        for (const int64_t rows : parameter.matrices) {
          const at::Tensor direction = grad.narrow(0, row, rows) * 0.1 + momentum.narrow(0, row, rows) * 0.9;
          expected.narrow(0, row, rows)
              .sub_(orthogonalized(direction, muon) *
                    (size.lr * muon_scale(rows, parameter.info.shape[1], muon)));
          row += rows;
          one_row += rows == 1 ? 1 : 0;
        }
        several += parameter.matrices.size() > 1 ? 1 : 0;
        CHECK(row == parameter.info.shape[0]);
        CHECK((parameter.master - expected).abs().max().item<double>() < 1e-4 * size.lr);
      }
    }
    CHECK(several > 0 && (one_row > 0) == (variant == "qwen3_next"));
  }
}

// Of all parameters, and after every step.
TEST(what_is_computed_with_are_the_weights_of_now) {
  at::manual_seed(8);
  ParameterStore store = store_of("qwen3_moe");
  for (int64_t step = 1; step <= 2; ++step) {
    const auto before = masters(store);
    for (ParameterGroup& group : store.groups()) group.grad.tensor().normal_();
    step_all(store, {1e-2, 1, step});
    for (const Parameter& parameter : store.all()) {
      CHECK(!parameter.master.equal(before.at(parameter.info.name)));
      CHECK(parameter.compute.equal(parameter.master.to(at::kBFloat16)));
    }
  }
}

TEST(without_gradients_weights_decay_alone) {
  ParameterStore store = store_of("qwen3_moe");
  const auto before = masters(store);
  step_all(store, {1e-2, 1, 1});
  for (const Parameter& parameter : store.all())
    CHECK(parameter.master.allclose(before.at(parameter.info.name) * (1 - 1e-3), 1e-6, 0));
}

TEST_MAIN()

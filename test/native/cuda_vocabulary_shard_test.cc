#include "kernels/device_ops.h"
#include "ranks.h"
#include "sharded_head.h"

// linear_log_prob over shards of the vocabulary on a GPU, against the float64 reference on the CPU. Ranks
// share the GPU. Without one there is nothing to test: the program says so and ctest counts it as skipped.
namespace {

using namespace troupe;
using namespace troupe::test;
using ops::VocabularyShard;

// Gloo for what lies on the device, through the host; NCCL wants a GPU for each rank.
class Staged final : public Communicator {
 public:
  explicit Staged(Communicator& inner) : Communicator(inner.rank(), inner.size()), inner_(inner) {}
  std::unique_ptr<Communicator> split(const std::string& name, const std::vector<int64_t>& ranks) override {
    return inner_.split(name, ranks);
  }
  void abort(const std::string& reason) override { inner_.abort(reason); }

 protected:
  std::function<void()> begin_all_gather(const at::Tensor& output, const at::Tensor& input) override {
    at::Tensor out = at::empty(output.sizes(), output.options().device(at::kCPU));
    inner_.all_gather(out, input.cpu(), {});
    output.copy_(out);
    return {};
  }
  std::function<void()> begin_all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    at::Tensor out = at::empty(output.sizes(), output.options().device(at::kCPU));
    inner_.all_to_all(out, input.cpu(), {});
    output.copy_(out);
    return {};
  }
  void move_broadcast(const at::Tensor& tensor, int64_t root) override {
    const at::Tensor host = tensor.cpu();
    inner_.broadcast(host, root, {});
    tensor.copy_(host);
  }
  void move_send(const at::Tensor&, const at::Tensor& tensor, int64_t dst) override {
    inner_.send(tensor.cpu(), dst, {});
  }
  void move_recv(const at::Tensor&, const at::Tensor& tensor, int64_t src) override {
    const at::Tensor host = tensor.cpu();
    inner_.recv(host, src, {});
    tensor.copy_(host);
  }

 private:
  Communicator& inner_;
};

std::vector<at::Tensor> outputs(const HeadOutcome& out) {
  return {out.rows.log_probs, out.rows.lse, out.rows.entropy, out.rows.sum_pi_squared, out.d_hidden};
}

TEST(shards_on_a_gpu_give_what_the_whole_gives) {
  struct Case {
    int64_t n, hidden_size;
    double temperature, softcap;
    std::vector<int64_t> offsets;
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const Case& c : std::vector<Case>{{128, 64, 1, 0, {0, 1000}},
                                           {1, 64, 1, 0, {0, 500, 1000}},
                                           {300, 48, 0.7, 30, {0, 777, 777, 2049}},
                                           {2304, 64, 1, 0, {0, 32000, 32003}},
                                           {0, 16, 1, 0, {0, 50, 100}}}) {
      HeadTask task(c.n, c.hidden_size, c.offsets.back(), {c.temperature, c.softcap});
      task.hidden = task.hidden.to(type).to(at::kFloat);
      task.weight = task.weight.to(type).to(at::kFloat);
      const HeadOutcome whole = run_head(task, at::kDouble, nullptr);
      const auto size = static_cast<int64_t>(c.offsets.size()) - 1;
      std::vector<HeadOutcome> all(static_cast<size_t>(size));
      check_all(size, [&](Communicator& direct) {
        Staged comm(direct);
        const VocabularyShard shard(comm, c.offsets);
        all[static_cast<size_t>(comm.rank())] = run_head(task, type, &shard, true, at::kCUDA);
      });
      const double gradients = type == at::kFloat ? 4e-4 : 2e-2;
      for (int64_t r = 0; r < size; ++r) {
        const HeadOutcome& out = all[static_cast<size_t>(r)];
        for (size_t i = 0; i < outputs(out).size(); ++i) CHECK(outputs(out)[i].equal(outputs(all[0])[i]));
        CHECK(out.forward.log_probs.equal(out.rows.log_probs));
        CHECK(out.forward.entropy.equal(out.rows.entropy));
        if (c.n == 0) continue;
        CHECK(worst(out.rows.log_probs, whole.rows.log_probs) < 4e-5);
        CHECK(worst(out.rows.entropy, whole.rows.entropy) < 4e-5);
        CHECK(worst(out.rows.sum_pi_squared, whole.rows.sum_pi_squared) < 4e-5);
        CHECK(worst_of_largest(out.d_hidden, whole.d_hidden) < gradients);
        const int64_t begin = c.offsets[static_cast<size_t>(r)];
        const at::Tensor rows = whole.d_weight.narrow(0, begin, out.d_weight.size(0));
        CHECK(rows.numel() == 0 || worst_of_largest(out.d_weight, rows) < gradients);
      }
      if (size > 1) continue;
      const HeadOutcome unsharded = run_head(task, type, nullptr, true, at::kCUDA);
      for (size_t i = 0; i < outputs(unsharded).size(); ++i) {
        CHECK(outputs(unsharded)[i].equal(outputs(all[0])[i]));
      }
      CHECK(unsharded.d_weight.equal(all[0].d_weight));
    }
  }
}

TEST(further_tokens_on_a_gpu_are_those_of_the_reference) {
  for (const double softcap : {0.0, 30.0}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const double tolerance = type == at::kFloat ? 4e-5 : 2e-2;
      HeadTask task(300, 48, 2049, {0.7, softcap});
      task.hidden = task.hidden.to(type).to(at::kFloat);
      task.weight = task.weight.to(type).to(at::kFloat);
      task.give_tokens(6);
      const HeadOutcome whole = run_head(task, at::kDouble, nullptr);
      std::vector<HeadOutcome> all(3);
      check_all(2, [&](Communicator& direct) {
        Staged comm(direct);
        const VocabularyShard shard(comm, {0, 777, 2049});
        all[static_cast<size_t>(comm.rank())] = run_head(task, type, &shard, true, at::kCUDA);
      });
      all[2] = run_head(task, type, nullptr, true, at::kCUDA);
      for (const HeadOutcome& out : all) {
        CHECK(worst(out.forward.top.log_probs, whole.forward.top.log_probs) < 4e-5);
        CHECK(worst(out.rows.given.log_probs, whole.rows.given.log_probs) < 4e-5);
        CHECK(worst_of_largest(out.d_hidden, whole.d_hidden) < tolerance);
      }
      CHECK(worst_of_largest(all[2].d_weight, whole.d_weight) < tolerance);
    }
  }
}

// A token that the policy has drawn and that is not among those of the teacher: all that its logit gets is
// its share of the sum of the row's gradients, which bfloat16 has no room for beside the sum itself.
TEST(a_target_beside_further_tokens_has_its_own_gradient) {
  HeadTask task(1, 16, 1000, {1, 0}, 0.125);
  task.hidden = task.hidden.to(at::kBFloat16).to(at::kFloat);
  task.weight = task.weight.to(at::kBFloat16).to(at::kFloat);
  task.targets.fill_(500);
  task.ids = at::arange(6, at::kInt).unsqueeze(0);
  task.by_given = at::full({1, 6}, -1.0 / 6);
  task.g.zero_();
  task.h.zero_();
  const auto added = [](const HeadOutcome& out) { return (out.d_weight[500] - 1).to(at::kDouble); };
  const at::Tensor expected = added(run_head(task, at::kDouble, nullptr));
  CHECK(worst_of_largest(added(run_head(task, at::kBFloat16, nullptr, true, at::kCUDA)), expected) < 2e-2);
}

}  // namespace

int main() {
  if (kernels::device_ops() == nullptr || !at::hasCUDA()) {
    std::printf("skipped: %s\n0 passed, 0 failed\n",
                kernels::device_ops() == nullptr ? "a build without CUDA" : "no GPU");
    return 77;  // SKIP_RETURN_CODE in CMakeLists.txt
  }
  return test::run_all();
}

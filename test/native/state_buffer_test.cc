#include "parameters/state_buffer.h"

#include <ATen/ATen.h>

#include "check.h"

// A buffer of state that is moved, fetched and given back: where its memory is, and which numbers count.

using namespace troupe;

namespace {

constexpr int64_t kCount = 6;

StateBuffer buffer_of(bool on_host) {
  return {kCount, at::kFloat, at::kCPU, /*lazily=*/false, on_host};
}

// Whether tensor() has memory.
bool there(const StateBuffer& buffer) {
  return buffer.tensor().storage().data() != nullptr;
}

bool holds(const at::Tensor& tensor, double value) {
  return tensor.eq(value).all().item<bool>();
}

}  // namespace

TEST(it_begins_with_zeros_where_it_is_kept) {
  for (const bool on_host : {false, true}) {
    const StateBuffer buffer = buffer_of(on_host);
    CHECK(buffer.defined() && buffer.on_host() == on_host && there(buffer) == !on_host);
    CHECK(buffer.bytes() == kCount * 4 && buffer.kept().numel() == kCount && holds(buffer.kept(), 0));
  }
}

TEST(views_follow_it_from_one_place_to_the_other) {
  StateBuffer buffer = buffer_of(false);
  const at::Tensor view = buffer.tensor().narrow(0, 2, 3);
  buffer.tensor().fill_(3);
  for (int again = 0; again < 2; ++again) {
    buffer.keep_on_host();
    CHECK(buffer.on_host() && !there(buffer) && holds(buffer.kept(), 3));
  }
  for (int again = 0; again < 2; ++again) {
    buffer.keep_on_device();
    CHECK(!buffer.on_host() && there(buffer) && holds(view, 3));
  }
}

TEST(what_was_fetched_counts_once_it_has_been_given_back_as_changed) {
  StateBuffer buffer = buffer_of(true);
  for (const bool changed : {false, true, false}) {
    const double before = buffer.kept()[0].item<double>();
    buffer.fetch();
    CHECK(there(buffer) && holds(buffer.tensor(), before));
    buffer.tensor().add_(1);
    buffer.fetch();  // it is there already
    CHECK(holds(buffer.tensor(), before + 1));
    buffer.give_back(changed);
    CHECK(!there(buffer) && holds(buffer.kept(), changed ? before + 1 : before));
    buffer.give_back(true);  // there is nothing to give back
    CHECK(holds(buffer.kept(), changed ? before + 1 : before));
  }
  // A move loses what was fetched and not given back.
  buffer.fetch();
  buffer.tensor().fill_(9);
  buffer.keep_on_device();
  CHECK(there(buffer) && holds(buffer.tensor(), 1));
  // On the device there is nothing to fetch, and nothing to free.
  buffer.fetch();
  buffer.give_back(false);
  CHECK(there(buffer) && holds(buffer.tensor(), 1));
}

TEST(it_is_cleared_wherever_it_is) {
  for (const bool on_host : {false, true}) {
    StateBuffer buffer = buffer_of(on_host);
    buffer.fetch();
    buffer.tensor().fill_(3);
    buffer.give_back(true);
    buffer.fetch();
    buffer.clear();
    CHECK(holds(buffer.kept(), 0) && there(buffer) == !on_host);
    buffer.fetch();
    CHECK(holds(buffer.tensor(), 0));
  }
}

TEST(of_no_state_nothing_is_moved) {
  StateBuffer none;
  none.keep_on_host();
  none.fetch();
  none.give_back(true);
  none.keep_on_device();
  none.clear();
  CHECK(!none.defined() && !none.on_host() && none.bytes() == 0);
}

TEST_MAIN()

#include <cmath>
#include <limits>
#include <vector>

#include "check.h"
#include "optim/schedule.h"

using namespace troupe;

namespace {

// Rates of the steps 0, 2, 4, 9, 16 and 18 of 20 as shares of the peak, of which the first 4 are warm-up.
// They are those that verl's and Megatron-LM's own functions gave (test/fixtures/schedules, whose other cases
// test/binding/schedules.test.ts reads).
struct Recorded {
  const char* name;
  Schedule schedule;
  std::vector<double> shares;
};

Schedule schedule_of(const char* kind) {
  Schedule schedule;
  schedule.kind = parse_schedule(kind);
  schedule.warmup_steps = 4;
  schedule.total_steps = 20;
  return schedule;
}

Schedule cosine(double num_cycles, double low, double init, int64_t first_step) {
  Schedule schedule = schedule_of("cosine");
  schedule.num_cycles = num_cycles;
  schedule.min_lr_ratio = low;
  schedule.init_lr_ratio = init;
  schedule.first_step = first_step;
  return schedule;
}

Schedule floored(const char* kind, double low, double init) {
  Schedule schedule = schedule_of(kind);
  schedule.min_lr_ratio = low;
  schedule.init_lr_ratio = init;
  return schedule;
}

Schedule wsd(const char* decay) {
  Schedule schedule = floored("WSD", 0.1, 1.0 / 300);
  schedule.wsd_decay_steps = 7;
  schedule.wsd_decay = parse_wsd_decay(decay);
  return schedule;
}

const std::vector<Recorded> kRecorded = {
    {"constant", floored("constant", 0, 1.0 / 30), {1.0 / 30, 0.5166666666666666, 1, 1, 1, 1}},
    {"cosine",
     cosine(0.5, 0, 0, 0),
     {0, 0.5, 1, 0.7777851165098011, 0.14644660940672627, 0.03806023374435663}},
    {"2.25 waves",
     cosine(2.25, 0.2, 0, 0),
     {0, 0.5, 1, 0.483886129098215, 0.4469266270539637, 0.9923141121612922}},
    {"counted from 1",
     cosine(0.75, 0.1, 0.3, 1),
     {0.475, 0.825, 0.9806231510794939, 0.46220935509274236, 0.20214529598676834, 0.41937189523549195}},
    {"linear",
     floored("linear", 1.0 / 30, 0.1),
     {0.1, 0.55, 1, 0.6979166666666665, 0.275, 0.15416666666666665}},
    {"inverse_square_root",
     floored("inverse_square_root", 0, 0),
     {0, 0.5, 1, 0.6666666666666666, 0.5, 0.47140452079103173}},
    {"inverse_square_root with a floor",
     floored("inverse_square_root", 0.5, 0),
     {0, 0.5, 1, 0.6666666666666666, 0.5, 0.5}},
    {"WSD linear",
     wsd("linear"),
     {1.0 / 300, 0.5016666666666666, 1, 1, 0.6142857142857142, 0.3571428571428571}},
    {"WSD cosine",
     wsd("cosine"),
     {1.0 / 300, 0.5016666666666666, 1, 1, 0.6501344202803414, 0.26942958916356996}},
    {"WSD exponential",
     wsd("exponential"),
     {1.0 / 300, 0.5016666666666666, 1, 1, 0.5373948602232534, 0.29711228878402784}},
    {"WSD minus_sqrt",
     wsd("minus_sqrt"),
     {1.0 / 300, 0.5016666666666666, 1, 1, 0.4108116963628206, 0.23936117074433505}},
};

TEST(rates_are_those_of_verl_and_megatron) {
  const std::vector<int64_t> steps = {0, 2, 4, 9, 16, 18};
  for (const Recorded& recorded : kRecorded) {
    for (size_t i = 0; i < steps.size(); ++i) {
      // A few roundings in double precision.
      const double got = learning_rate(recorded.schedule, 3e-4, steps[i]) / 3e-4;
      const bool same = std::abs(got - recorded.shares[i]) < 1e-14;
      if (!same) std::printf("%s, step %d: %.17g\n", recorded.name, static_cast<int>(steps[i]), got);
      CHECK(same);
    }
  }
}

// Recorded before warm-up could start from another rate than 0: a run that is resumed must not change by a
// bit.
TEST(a_warm_up_from_zero_has_the_bits_of_before) {
  Schedule schedule = schedule_of("constant");
  schedule.warmup_steps = 7;
  CHECK(learning_rate(schedule, 1e-6, 3) == 0x1.cc2cd138104f2p-22);
  CHECK(learning_rate(schedule, 1e-6, 5) == 0x1.7f7aae5962ec9p-21);
  CHECK(learning_rate(schedule, 1e-6, 7) == 1e-6);
}

TEST(past_the_end_the_rate_stays_where_it_ended) {
  for (const Recorded& recorded : kRecorded) {
    const int64_t last = 20 - recorded.schedule.first_step;
    const double end = learning_rate(recorded.schedule, 2, last);
    for (const int64_t after : {1, 2, 7, 1000000})
      CHECK(learning_rate(recorded.schedule, 2, last + after) == end);
  }
  CHECK_CLOSE(learning_rate(wsd("exponential"), 2, 20), 0.2, 1e-15);
  CHECK_CLOSE(learning_rate(cosine(1, 0.1, 0, 0), 2, 30), 2.0, 1e-15);
  // Megatron-LM falls to the floor at once there.
  CHECK_CLOSE(learning_rate(schedule_of("inverse_square_root"), 2, 30), 2 * std::sqrt(0.2), 1e-15);
}

TEST(a_warm_up_longer_than_the_schedule_ends_at_the_peak) {
  for (const char* kind : {"constant", "cosine", "linear", "inverse_square_root"}) {
    Schedule schedule = schedule_of(kind);
    schedule.warmup_steps = 40;
    CHECK_CLOSE(learning_rate(schedule, 2, 20), 1.0, 1e-15);
    CHECK_CLOSE(learning_rate(schedule, 2, 40), 2.0, 1e-15);
  }
}

TEST(schedules_that_make_no_sense_are_refused) {
  CHECK_THROWS(
      parse_schedule("wsd"),
      "unknown learning-rate schedule 'wsd'; known: constant, cosine, linear, inverse_square_root, WSD");
  CHECK_THROWS(parse_wsd_decay("sqrt"),
               "unknown decay of WSD 'sqrt'; known: linear, cosine, exponential, minus_sqrt");
  const auto refused = [](const char* kind, auto change, const char* message) {
    Schedule schedule = schedule_of(kind);
    schedule.wsd_decay_steps = 1;
    change(schedule);
    CHECK_THROWS(validate(schedule), message);
    CHECK_THROWS(learning_rate(schedule, 2, 4), message);
  };
  for (const char* kind : {"cosine", "linear", "inverse_square_root", "WSD"}) {
    const std::string needs =
        std::string("the ") + kind + " schedule needs the total number of steps but got -1";
    refused(
        kind, [](Schedule& schedule) { schedule.total_steps = -1; }, needs.c_str());
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  refused(
      "linear", [](Schedule& schedule) { schedule.min_lr_ratio = 1.5; }, "from 0 to 1, got 1.5");
  refused(
      "constant", [](Schedule& schedule) { schedule.init_lr_ratio = -0.5; }, "from 0 to 1, got -0.5");
  refused(
      "cosine", [&](Schedule& schedule) { schedule.num_cycles = nan; }, "waves of the cosine");
  refused(
      "cosine", [](Schedule& schedule) { schedule.num_cycles = 1e300; }, "waves of the cosine");
  refused(
      "cosine", [](Schedule& schedule) { schedule.first_step = 2; }, "expected 0 or 1, got 2");
  for (const char* kind : {"constant", "linear", "WSD"}) {
    refused(
        kind, [](Schedule& schedule) { schedule.warmup_steps = -1; }, "warm-up: expected at least 0, got -1");
  }
  refused(
      "WSD", [](Schedule& schedule) { schedule.wsd_decay_steps = 0; }, "expected 1 to the 16 that follow");
  refused(
      "WSD", [](Schedule& schedule) { schedule.wsd_decay_steps = 17; }, "the warm-up, got 17");
}

}  // namespace

TEST_MAIN()

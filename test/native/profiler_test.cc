#include "profiler/profiler.h"

#include <ATen/ATen.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "base/range.h"
#include "check.h"

namespace {

using namespace troupe;

std::string file_of(const char* name) {
  return (std::filesystem::temp_directory_path() / (std::string("troupe_profiler_") + name + ".json"))
      .string();
}

std::string text_of(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

bool has(const std::string& trace, const std::string& name) {
  return trace.find("\"name\": \"" + name + "\"") != std::string::npos;
}

const ProfileOptions kPlain{};

TEST(a_profile_has_the_operations_and_ranges_of_its_thread_between_start_and_stop) {
  CHECK(has_profiler());
  prepare_profiler(kPlain);
  const std::string path = file_of("whole");
  const at::Tensor x = at::ones({4, 4});
  {
    const Range before("before");
    at::relu(x);
  }
  Profiler profiler;
  // On a thread of its own, as the engine is.
  std::thread([&] {
    profiler.start(kPlain);
    profiler.enter("outer");
    {
      const Range plain("plain");
      const Range numbered("layer", 3, " backward");
      const Range labelled("all_gather", std::string("layers.3"));
      at::mm(x, x);
    }
    profiler.leave();
    profiler.stop(path);
    const Range after("after");
    at::sigmoid(x);
  }).join();
  const std::string trace = text_of(path);
  for (const char* name : {"outer", "plain", "layer3 backward", "all_gather layers.3", "aten::mm"})
    CHECK(has(trace, name));
  for (const char* name : {"before", "after", "aten::relu", "aten::sigmoid"}) CHECK(!has(trace, name));
  CHECK(trace.find("Input Dims") == std::string::npos);
  std::filesystem::remove(path);
}

TEST(shapes_and_memory_are_recorded_where_they_are_asked_for) {
  const std::string path = file_of("more");
  Profiler profiler;
  profiler.start({.shapes = true, .memory = true});
  at::mm(at::ones({3, 5}), at::ones({5, 7}));
  profiler.stop(path);
  const std::string trace = text_of(path);
  CHECK(trace.find("Input Dims") != std::string::npos && trace.find("[3, 5]") != std::string::npos);
  CHECK(has(trace, "[memory]"));
  std::filesystem::remove(path);
}

TEST(what_is_dropped_leaves_nothing_and_the_next_profile_begins_empty) {
  const std::string path = file_of("next");
  Profiler profiler;
  profiler.drop();
  profiler.enter("nobody records this");
  profiler.leave();
  profiler.start(kPlain);
  profiler.enter("dropped");
  profiler.drop();
  profiler.start(kPlain);
  at::mm(at::ones({2, 2}), at::ones({2, 2}));
  profiler.stop(path);
  CHECK(!has(text_of(path), "dropped"));
  CHECK(has(text_of(path), "aten::mm"));
  std::filesystem::remove(path);
}

TEST(a_second_start_a_stop_without_one_and_a_path_that_cannot_be_written_are_errors) {
  Profiler profiler;
  CHECK_THROWS(profiler.stop(file_of("none")), "no profile is running");
  profiler.start(kPlain);
  CHECK_THROWS(profiler.start(kPlain), "a profile is running already");
  CHECK_THROWS(profiler.stop("/nowhere/at/all/trace.json"), "could not write the trace to /nowhere/at/all");
  // It has ended all the same.
  profiler.start(kPlain);
  profiler.drop();
}

// Two environments of a process, as worker_threads have them, each with an engine thread of its own.
TEST(of_two_threads_one_records_at_a_time) {
  const std::string path = file_of("first"), later = file_of("second");
  Profiler first, second;
  first.start(kPlain);
  std::thread([&] {
    CHECK_THROWS(prepare_profiler(kPlain), "a profile is running already");
    CHECK_THROWS(second.start(kPlain), "a profile is running already");
    CHECK_THROWS(second.stop(later), "no profile is running");
  }).join();
  at::mm(at::ones({2, 2}), at::ones({2, 2}));
  first.stop(path);
  CHECK(has(text_of(path), "aten::mm"));
  std::thread([&] {
    prepare_profiler(kPlain);
    second.start(kPlain);
    at::relu(at::ones({2}));
    second.stop(later);
  }).join();
  CHECK(has(text_of(later), "aten::relu") && !has(text_of(later), "aten::mm"));
  std::filesystem::remove(path);
  std::filesystem::remove(later);
}

TEST(a_range_that_nobody_records_costs_next_to_nothing) {
  constexpr int64_t kCount = 1'000'000;
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < kCount; ++i) const Range range("layer", i, " backward");
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
    best = std::min(best, spent.count() / kCount);
  }
  std::printf("  a range without a profile: %.1f ns\n", best);
  CHECK(best < 1000);  // putting its name together alone takes longer on any machine that is not in trouble
}

}  // namespace

TEST_MAIN()

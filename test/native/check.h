#pragma once

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

// A test harness in one screen: TEST(name) { CHECK(...); } and TEST_MAIN() once per executable, whose
// argument is a part of the names of the tests to run.
namespace troupe::test {

struct Case {
  std::string name;
  std::function<void()> body;
};
inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
inline int& failures() {
  static int count = 0;
  return count;
}
struct Register {
  Register(std::string name, std::function<void()> body) {
    cases().push_back({std::move(name), std::move(body)});
  }
};
inline void report(bool ok, const char* file, int line, const std::string& what) {
  if (ok) return;
  ++failures();
  std::printf("  %s:%d: %s\n", file, line, what.c_str());
}

// Those whose names have `part` in them.
inline int run_all(const std::string& part = "") {
  int failed_cases = 0;
  std::erase_if(cases(), [&](const Case& test) { return test.name.find(part) == std::string::npos; });
  for (auto& test : cases()) {
    const int before = failures();
    try {
      test.body();
    } catch (const std::exception& error) {
      report(false, __FILE__, __LINE__, std::string("threw ") + error.what());
    }
    const bool ok = failures() == before;
    failed_cases += !ok;
    std::printf("%s %s\n", ok ? "ok  " : "FAIL", test.name.c_str());
  }
  std::printf("%zu passed, %d failed\n", cases().size() - static_cast<size_t>(failed_cases), failed_cases);
  return failed_cases == 0 ? 0 : 1;
}

}  // namespace troupe::test

#define TEST(name)                                                         \
  static void test_##name();                                               \
  static const troupe::test::Register register_##name(#name, test_##name); \
  static void test_##name()
#undef CHECK  // c10/util/logging_is_not_google_glog.h has one too
#define CHECK(condition) troupe::test::report((condition), __FILE__, __LINE__, "expected " #condition)
#define CHECK_CLOSE(a, b, tolerance)                                                                      \
  do {                                                                                                    \
    const double check_a = (a), check_b = (b);                                                            \
    troupe::test::report(                                                                                 \
        std::abs(check_a - check_b) <= (tolerance), __FILE__, __LINE__,                                   \
        "expected " #a " == " #b ", got " + std::to_string(check_a) + " and " + std::to_string(check_b)); \
  } while (0)
#define CHECK_THROWS(expression, fragment)                                                      \
  do {                                                                                          \
    std::string check_message = "(nothing thrown)";                                             \
    try {                                                                                       \
      expression;                                                                               \
    } catch (const std::exception& error) {                                                     \
      check_message = error.what();                                                             \
    }                                                                                           \
    troupe::test::report(check_message.find(fragment) != std::string::npos, __FILE__, __LINE__, \
                         #expression " threw: " + check_message);                               \
  } while (0)
#define TEST_MAIN()                                                                            \
  int main(int argc, char** argv) {                                                            \
    /* Node.js does so in workers: writing to a rank that is gone is an error, not the end. */ \
    std::signal(SIGPIPE, SIG_IGN);                                                             \
    return troupe::test::run_all(argc > 1 ? argv[1] : "");                                     \
  }

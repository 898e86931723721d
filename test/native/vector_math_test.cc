#define TROUPE_ISA test_scalar
#include "kernels/cpu/vector_math.h"

#include <cmath>
#include <limits>

#include "check.h"

// The scalar functions that the kernels vectorise, compiled for the plain processor.
namespace {

using namespace troupe;

// Errors in units in the last place of the correctly rounded result.
double ulps(float got, double expected) {
  const float rounded = static_cast<float>(expected);
  if (std::isinf(rounded)) return got == rounded ? 0 : 1e9;
  const double unit =
      std::nextafter(std::abs(rounded), std::numeric_limits<float>::infinity()) - std::abs(rounded);
  return std::abs(static_cast<double>(got) - expected) / unit;
}

TEST(vector_math_is_accurate) {
  namespace math = kernels::test_scalar;
  double exp_error = 0, subnormal_error = 0, tanh_error = 0, cdf_error = 0;
  for (int64_t i = -1200000; i <= 1200000; ++i) {
    const float x = static_cast<float>(i) * 1e-4f;
    const double e = std::exp(static_cast<double>(x));
    double& error = e < std::numeric_limits<float>::min() ? subnormal_error : exp_error;
    error = std::max(error, ulps(math::vector_exp(x), e));
    const float of_scores = math::vector_exp_of_scores(x);
    if (x <= 88) CHECK(of_scores == (x < -87 ? 0 : math::vector_exp(x)));
    tanh_error = std::max(tanh_error, ulps(math::vector_tanh(x / 8), std::tanh(static_cast<double>(x / 8))));
    const double cdf = 0.5 * std::erfc(-static_cast<double>(x / 8) / std::sqrt(2.0));
    cdf_error = std::max(cdf_error, std::abs(math::vector_normal(x / 8).cdf - cdf));
  }
  std::printf("  errors in ulp: exp %.3f, subnormal %.3f, tanh %.3f; normal cdf %.2e\n", exp_error,
              subnormal_error, tanh_error, cdf_error);
  CHECK(exp_error < 1.01 && subnormal_error < 1.51 && tanh_error < 3 && cdf_error < 2e-7);
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(math::vector_exp(-inf) == 0 && math::vector_exp(inf) == inf && math::vector_exp(0) == 1);
  CHECK(std::isnan(math::vector_exp(std::nanf(""))) && std::isnan(math::vector_tanh(std::nanf(""))));
  CHECK(math::vector_exp_of_scores(-1.2e7f) == 0 && math::vector_exp_of_scores(-3e38f) == 0);
  CHECK(math::vector_exp_of_scores(-inf) == 0 && std::isnan(math::vector_exp_of_scores(std::nanf("17"))));
  CHECK(math::vector_tanh(inf) == 1 && math::vector_tanh(-inf) == -1 &&
        std::signbit(math::vector_tanh(-0.0f)));
}

}  // namespace

TEST_MAIN()

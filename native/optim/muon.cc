// The Newton-Schulz iteration.
#include "optim/muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/simulated.h"

namespace troupe {

namespace {

// X <- a X + b (X X^T) X + c (X X^T)^2 X
struct Polynomial {
  double a, b, c;
};

// What further iterations have behind the last polynomial of a set: it once more, the first again, or none.
enum class Behind { kLast, kFirst, kNone };

struct CoefficientSet {
  const char* name;
  NewtonSchulz kind;
  Behind behind;
  std::vector<Polynomial> polynomials;
};

constexpr Polynomial kJordan{3.4445, -4.7750, 2.0315};

// Of X / by in the place of X.
constexpr Polynomial of_smaller(Polynomial p, double by) {
  return {p.a / by, p.b / (by * by * by), p.c / (by * by * by * by * by)};
}
// [Note: margins of coefficients] Singular values begin at up to 1, which a matrix of rank one has. A
// polynomial of CANS takes some to the very end of the interval that the next one is made for. That one is so
// steep there that what bfloat16 rounds takes them out of it, and the others to 1e11. Polar Express, where
// it was published, divides by 1.01 therefore (Algorithm 1), and its coefficients here have that in them.
constexpr double kCansMargin = 1.02;
// The first polynomial of AOL is below zero from 0.884 on: such a direction would come out reversed.
constexpr double kAolMargin = 1 / 0.85;

const std::vector<CoefficientSet>& coefficient_sets() {
  static const std::vector<CoefficientSet> sets{
      {"simple", NewtonSchulz::kSimple, Behind::kFirst, {kJordan}},
      {"quintic",
       NewtonSchulz::kQuintic,
       Behind::kFirst,
       {{4.0848, -6.8946, 2.9270},
        {3.9505, -6.3029, 2.6377},
        {3.7418, -5.5913, 2.3037},
        {2.8769, -3.1427, 1.2046},
        {2.8366, -3.0525, 1.2012}}},
      {"polar_express",
       NewtonSchulz::kPolarExpress,
       Behind::kLast,
       {{8.2051, -22.9019, 16.4607},
        {4.0664, -2.8612, 0.5184},
        {3.9096, -2.8234, 0.5250},
        {3.2856, -2.4153, 0.4853},
        {2.2779, -1.6198, 0.3985},
        {1.8726, -1.2307, 0.3585},
        {1.8564, -1.2132, 0.3568},
        {1.8750, -1.2500, 0.3750}}},
      {"cans",
       NewtonSchulz::kCans,
       Behind::kLast,
       {of_smaller({8.4703, -25.1081, 18.6293}, kCansMargin),
        of_smaller({4.1828, -3.1087, 0.5806}, kCansMargin),
        of_smaller({3.9619, -2.9541, 0.5630}, kCansMargin),
        of_smaller({3.2866, -2.4647, 0.5074}, kCansMargin),
        {2.2737, -1.6447, 0.4162}}},
      {"aol",
       NewtonSchulz::kAol,
       Behind::kNone,
       {of_smaller({4.0098, -7.0585, 2.4635}, kAolMargin),
        {3.4585, -5.5479, 2.5959},
        {2.7573, -3.2939, 1.4254},
        {2.7215, -3.0494, 1.3169}}},
      {"deepseekv4",
       NewtonSchulz::kDeepSeekV4,
       Behind::kLast,
       {kJordan, kJordan, kJordan, kJordan, kJordan, kJordan, kJordan, kJordan, {2, -1.5, 0.5}}},
  };
  return sets;
}

const CoefficientSet& coefficient_set(NewtonSchulz kind) {
  const auto& sets = coefficient_sets();
  return *std::find_if(sets.begin(), sets.end(), [&](const CoefficientSet& s) { return s.kind == kind; });
}

Polynomial polynomial(const CoefficientSet& set, size_t iteration) {
  const size_t count = set.polynomials.size();
  return set.polynomials[set.behind == Behind::kLast ? std::min(iteration, count - 1) : iteration % count];
}

// Rows of a symmetric product that are found together on a CPU. Fewer would keep fewer cores busy.
constexpr int64_t kSymmetricRows = 256, kMostSymmetricParts = 4;

// A symmetric [m, m] of which rows(begin, count, columns) gives a part of the rows, as far as its own columns
// go. The rest is that part, mirrored: with four parts 5/8 of the work.
template <typename Rows>
at::Tensor symmetric(int64_t m, const at::Tensor& like, const Rows& rows) {
  const int64_t parts =
      on_cpu_threads(like.device()) ? std::clamp<int64_t>(m / kSymmetricRows, 1, kMostSymmetricParts) : 1;
  if (parts == 1) return rows(0, m, m);
  const at::Tensor all = at::empty({m, m}, like.options());
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = m * part / parts, end = m * (part + 1) / parts;
    const at::Tensor found = rows(begin, end - begin, end);
    if (simulated(found)) continue;
    all.narrow(0, begin, end - begin).narrow(1, 0, end).copy_(found);
    all.narrow(0, 0, begin).narrow(1, begin, end - begin).copy_(found.narrow(1, 0, begin).t());
  }
  return all;
}

// Of x [m, n] and of a symmetric g [m, m]: x x^T, and b g + c g^2.
at::Tensor gram_of(const at::Tensor& x) {
  return symmetric(x.size(0), x, [&](int64_t begin, int64_t count, int64_t columns) {
    if (simulated(x)) return at::empty({count, columns}, x.options());
    return at::mm(x.narrow(0, begin, count), x.narrow(0, 0, columns).t());
  });
}
at::Tensor quadratic_of(const at::Tensor& g, double b, double c) {
  return symmetric(g.size(0), g, [&](int64_t begin, int64_t count, int64_t columns) {
    if (simulated(g)) return at::empty({count, columns}, g.options());
    const at::Tensor rows = g.narrow(0, begin, count);
    return at::addmm(rows.narrow(1, 0, columns), rows, g.narrow(0, 0, columns).t(), b, c);
  });
}

}  // namespace

NewtonSchulz parse_newton_schulz(const std::string& name) {
  std::string known;
  for (const CoefficientSet& set : coefficient_sets()) {
    if (name == set.name) return set.kind;
    known += std::string(known.empty() ? "" : ", ") + set.name;
  }
  fail(ErrorCode::kInvalidArgument, "[optim] unknown coefficients of Muon '", name, "'; known: ", known);
}

MuonScale parse_muon_scale(const std::string& name) {
  if (name == "spectral") return MuonScale::kSpectral;
  if (name == "unit_rms_norm") return MuonScale::kUnitRmsNorm;
  if (name == "shape_scaling") return MuonScale::kShapeScaling;
  fail(ErrorCode::kInvalidArgument, "[optim] unknown scale of Muon '", name,
       "'; known: spectral, unit_rms_norm, shape_scaling");
}

void validate(const MuonOptions& options) {
  require(options.momentum >= 0 && options.momentum < 1, ErrorCode::kInvalidArgument,
          "[optim] expected a momentum of Muon from 0 and below 1, got ", options.momentum);
  require(options.iterations >= 1, ErrorCode::kInvalidArgument,
          "[optim] expected at least one iteration of Muon, got ", options.iterations);
  const CoefficientSet& set = coefficient_set(options.coefficients);
  const auto round = static_cast<int64_t>(set.polynomials.size());
  require(set.behind != Behind::kNone || options.iterations <= round, ErrorCode::kInvalidArgument,
          "[optim] expected at most ", round, " iterations of Muon: the first polynomial of ", set.name,
          " takes a singular value of one below zero, got ", options.iterations);
  require(set.behind != Behind::kFirst || options.iterations <= round || options.iterations % round == 0,
          ErrorCode::kInvalidArgument, "[optim] expected at most ", round,
          " iterations of Muon, or a multiple of it: the first polynomial of ", set.name,
          " takes singular values away from one again, got ", options.iterations);
  require(std::isfinite(options.extra_scale) && options.extra_scale > 0, ErrorCode::kInvalidArgument,
          "[optim] expected an extra scale of Muon above 0, got ", options.extra_scale);
}

at::Tensor orthogonalized(const at::Tensor& matrix, const MuonOptions& options) {
  require(matrix.dim() == 2 && matrix.scalar_type() == at::kFloat, ErrorCode::kInternal,
          "[optim] expected a matrix of float32 to orthogonalise, got ", matrix.dim(), " dimensions of ",
          matrix.scalar_type());
  constexpr double kSmallest = 1e-30;  // of a norm; it is found in double, which has the squares of it
  const bool tall = matrix.size(0) > matrix.size(1);
  const at::Tensor wide = tall ? matrix.t() : matrix;
  const int64_t m = wide.size(0), n = wide.size(1);
  const auto kind = matrix.options().dtype(options.bfloat16 ? at::kBFloat16 : at::kFloat);
  at::Tensor x = at::empty({m, n}, kind);
  if (simulated(matrix)) {
    at::empty({m, n}, matrix.options());
  } else {
    const at::Tensor norm = sum_of_squares(matrix.contiguous().view({-1})).sqrt();
    x.copy_(wide.div(norm.clamp_min(kSmallest).to(at::kFloat)));
  }
  const CoefficientSet& set = coefficient_set(options.coefficients);
  at::Tensor next = at::empty({m, n}, kind);
  // What is simulated takes as much in each of them.
  for (int64_t i = 0; i < (simulated(matrix) ? 1 : options.iterations); ++i) {
    const auto [a, b, c] = polynomial(set, static_cast<size_t>(i));
    const at::Tensor gram = gram_of(x), terms = quadratic_of(gram, b, c);
    if (simulated(matrix)) continue;
    at::addmm_out(next, x, terms, x, a, 1);
    std::swap(x, next);
  }
  x = options.bfloat16 ? at::empty({m, n}, matrix.options()).copy_(x) : x;
  return tall ? x.t() : x;
}

double muon_scale(int64_t out, int64_t in, const MuonOptions& options) {
  const double rows = static_cast<double>(out), columns = static_cast<double>(in);
  switch (options.scale) {
    case MuonScale::kSpectral: return options.extra_scale * std::sqrt(std::max(rows, columns));
    case MuonScale::kUnitRmsNorm: return options.extra_scale * std::sqrt(rows / columns);
    case MuonScale::kShapeScaling: break;
  }
  return options.extra_scale * std::sqrt(std::max(1.0, rows / columns));
}

}  // namespace troupe

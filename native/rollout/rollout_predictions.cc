// What the model's own layer for further tokens does behind a step.
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "rollout/rollout.h"

namespace troupe {

void Rollout::predict(const std::vector<FollowedRows>& followed) {
  struct Guessing {
    size_t followed;
    Sequence* sequence;
    int64_t room, row;
  };
  std::vector<Guessing> guessing;
  std::vector<size_t> first;
  for (size_t i = 0; i < followed.size(); ++i) {
    const FollowedRows& rows = followed[i];
    Sequence* const sequence = rows.sampled ? scheduler_.find(rows.id) : nullptr;
    if (sequence == nullptr) continue;
    // The layer sees a token that it has guessed itself where there is a page for it.
    const int64_t pages = static_cast<int64_t>(rows.pages.size()) * kPagePositions;
    const int64_t room =
        std::min(scheduler_.guess_room(*sequence), pages - (rows.position + rows.count()) + 1);
    if (room <= 0) continue;
    guessing.push_back({i, sequence, room, static_cast<int64_t>(first.size())});
    first.push_back(i);
  }
  at::Tensor y = predictor_->follow(followed, runner_.rows(), first);
  for (int64_t ahead = 0; !guessing.empty(); ++ahead) {
    std::vector<LogitsUse> uses;
    std::vector<int64_t> rows;
    for (const Guessing& own : guessing) {
      uses.push_back({own.sequence, -1, ahead});
      rows.push_back(own.row);
    }
    // Drawn with the number that the token itself will be drawn with: of two distributions that are near one
    // another the same token falls more often than the likeliest one does.
    const Choices choices = choices_of(y, rows, uses, /*ahead=*/true);
    std::vector<Guessing> further;
    std::vector<GuessRow> guesses;
    for (size_t i = 0; i < guessing.size(); ++i) {
      const Sampled& sampled = choices.chosen[i].sampled;
      if (!sampled.finite) continue;
      Guessing own = guessing[i];
      own.sequence->predicted.push_back(sampled.token);
      if (ahead + 1 == own.room) continue;
      guesses.push_back({own.followed, own.row, sampled.token});
      own.row = static_cast<int64_t>(further.size());
      further.push_back(own);
    }
    guessing = std::move(further);
    if (!guessing.empty()) y = predictor_->further(followed, y, guesses, ahead + 1);
  }
}

}  // namespace troupe

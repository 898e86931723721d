// Images of prompts: what they are, which tokens stand for them, and where these lie.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

// An image in the size in which it is read.
struct Image {
  int64_t height = 0, width = 0;  // pixels
  at::Tensor pixels;              // [height, width, 3] uint8, on the CPU (in a simulation: without memory)
  uint64_t hash = 0;              // of all of it
};

// Checks what the numbers say of each other: kInvalidArgument, naming `what`.
Image make_image(int64_t height, int64_t width, const at::Tensor& pixels, const std::string& what);
bool same_image(const Image& a, const Image& b);

// How a model's tokens stand for images: each for a square of `side` pixels, row by row.
struct ImageTokens {
  int32_t id = 0;
  int64_t side = 0;
};

// Tokens [position, position + height * width) of a prompt stand for an image.
struct ImageSpan {
  int64_t position = 0, height = 0, width = 0;
  int64_t size() const { return height * width; }
  int64_t end() const { return position + size(); }
};

// Where the images of a prompt lie, in order. kInvalidArgument, naming `what` and the numbers, where an image
// does not divide into tokens, or the prompt has fewer or more tokens for images than these have.
std::vector<ImageSpan> image_spans(const int32_t* prompt, int64_t length,
                                   const std::vector<const Image*>& images, const ImageTokens& tokens,
                                   const std::string& what);

// The rotary positions of tokens [from, to): time, row and column, into arrays of to - from. All three go on
// with the text; in an image time stands still while rows and columns count from there, and the text behind
// it goes on from the greatest of them (Qwen2-VL, arXiv:2409.12191, section 2.1). They are never above a
// token's own position.
void rotary_positions(const std::vector<ImageSpan>& images, int64_t from, int64_t to, int32_t* time,
                      int32_t* row, int32_t* column);

// Images of a batch, each of which may belong to several sequences.
struct ImageBatch {
  std::vector<Image> all;
  std::vector<std::vector<int64_t>> of_sequence;  // [B], or empty: none has any
  std::vector<const Image*> of(int64_t sequence) const;
};

}  // namespace troupe

// Typed access to the fields of a JavaScript object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "binding/setup.h"

namespace troupe::binding {

// A value from JavaScript and the path that leads to it, such as updatePolicy.batch.tokens. Every
// reader throws kInvalidArgument: "<path>: expected <type>, got <what came>".
class Field {
 public:
  Field(Napi::Value value, std::string path) : value_(value), path_(std::move(path)) {}

  Napi::Value value() const { return value_; }
  const std::string& path() const { return path_; }

  // A property of an object; a missing one (undefined) is an error, null is a value.
  Field operator[](const char* name) const;
  bool is_null() const { return value_.IsNull(); }

  double number() const;
  int64_t integer() const;  // exact: at most 2^53 either way
  int64_t count() const;    // an integer >= 0
  bool boolean() const;
  std::string string() const;
  // One of the given words.
  size_t word(std::initializer_list<std::string_view> words) const;

  std::vector<Field> elements() const;                         // of an Array
  std::vector<std::pair<std::string, Field>> entries() const;  // of a record
  std::vector<double> numbers() const;
  std::vector<int64_t> integers() const;
  std::vector<bool> booleans() const;

  [[noreturn]] void mismatch(std::string_view expected) const;

 private:
  Napi::Value value_;
  std::string path_;
};

// "Float64Array", "null", "the number 1.5", ...
std::string describe(Napi::Value value);

// The arguments of a call by position and name, for paths.
class Arguments {
 public:
  Arguments(const Napi::CallbackInfo& info, const char* function) : info_(info), function_(function) {}
  Field operator()(size_t index, const char* name) const;

 private:
  const Napi::CallbackInfo& info_;
  const char* function_;
};

}  // namespace troupe::binding

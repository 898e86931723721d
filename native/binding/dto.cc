// Fields of JavaScript objects, read with errors that name their path.
#include "binding/dto.h"

#include <array>
#include <cmath>
#include <sstream>

#include "base/error.h"

namespace troupe::binding {

namespace {

std::string typed_array_name(napi_typedarray_type type) {
  switch (type) {
    case napi_int8_array: return "Int8Array";
    case napi_uint8_array: return "Uint8Array";
    case napi_uint8_clamped_array: return "Uint8ClampedArray";
    case napi_int16_array: return "Int16Array";
    case napi_uint16_array: return "Uint16Array";
    case napi_int32_array: return "Int32Array";
    case napi_uint32_array: return "Uint32Array";
    case napi_float32_array: return "Float32Array";
    case napi_float64_array: return "Float64Array";
    case napi_bigint64_array: return "BigInt64Array";
    case napi_biguint64_array: return "BigUint64Array";
    default: return "a typed array";
  }
}

}  // namespace

std::string describe(Napi::Value value) {
  constexpr size_t kLongest = 40;
  if (value.IsTypedArray()) return typed_array_name(value.As<Napi::TypedArray>().TypedArrayType());
  if (value.IsArray()) return "Array";
  switch (value.Type()) {
    case napi_undefined: return "undefined";
    case napi_null: return "null";
    case napi_boolean: return value.As<Napi::Boolean>().Value() ? "true" : "false";
    case napi_number: {
      std::ostringstream text;
      text << "the number " << value.As<Napi::Number>().DoubleValue();
      return text.str();
    }
    case napi_string: {
      const std::string text = value.As<Napi::String>().Utf8Value();
      return "the string '" + (text.size() > kLongest ? text.substr(0, kLongest) + "..." : text) + "'";
    }
    case napi_function: return "a function";
    case napi_bigint: return "a bigint";
    case napi_symbol: return "a symbol";
    case napi_external: return "another native handle";
    default: return "an object";
  }
}

void Field::mismatch(std::string_view expected) const {
  fail(ErrorCode::kInvalidArgument, path_, ": expected ", expected, ", got ", describe(value_));
}

Field Field::operator[](const char* name) const {
  if (!value_.IsObject() || value_.IsArray() || value_.IsTypedArray()) mismatch("an object");
  Field field(value_.As<Napi::Object>().Get(name), path_ + "." + name);
  require(!field.value_.IsUndefined(), ErrorCode::kInvalidArgument, field.path_,
          ": missing property (every property must be present; null says none)");
  return field;
}

double Field::number() const {
  if (!value_.IsNumber()) mismatch("a number");
  return value_.As<Napi::Number>().DoubleValue();
}

int64_t Field::integer() const {
  constexpr double kLargest = 9007199254740992.0;  // 2^53
  if (!value_.IsNumber()) mismatch("an integer");
  const double number = value_.As<Napi::Number>().DoubleValue();
  if (std::trunc(number) != number || std::abs(number) > kLargest) mismatch("an integer");
  return static_cast<int64_t>(number);
}

int64_t Field::count() const {
  const int64_t number = integer();
  if (number < 0) mismatch("an integer >= 0");
  return number;
}

bool Field::boolean() const {
  if (!value_.IsBoolean()) mismatch("a boolean");
  return value_.As<Napi::Boolean>().Value();
}

std::string Field::string() const {
  if (!value_.IsString()) mismatch("a string");
  return value_.As<Napi::String>().Utf8Value();
}

size_t Field::word(std::initializer_list<std::string_view> words) const {
  std::string expected = "one of";
  const std::string text = value_.IsString() ? string() : "";
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words.begin()[i];
    if (value_.IsString() && word == text) return i;
    expected.append(i == 0 ? " '" : ", '").append(word).append("'");
  }
  mismatch(expected);
}

std::vector<Field> Field::elements() const {
  if (!value_.IsArray()) mismatch("an Array");
  const auto array = value_.As<Napi::Array>();
  std::vector<Field> fields;
  fields.reserve(array.Length());
  for (uint32_t i = 0; i < array.Length(); ++i) {
    fields.emplace_back(array.Get(i), path_ + "[" + std::to_string(i) + "]");
  }
  return fields;
}

std::vector<std::pair<std::string, Field>> Field::entries() const {
  if (!value_.IsObject() || value_.IsArray() || value_.IsTypedArray()) mismatch("an object");
  const auto object = value_.As<Napi::Object>();
  const Napi::Array names = object.GetPropertyNames();
  std::vector<std::pair<std::string, Field>> fields;
  for (uint32_t i = 0; i < names.Length(); ++i) {
    const std::string name = names.Get(i).As<Napi::String>().Utf8Value();
    fields.emplace_back(name, Field(object.Get(name), path_ + "." + name));
  }
  return fields;
}

std::vector<double> Field::numbers() const {
  std::vector<double> values;
  for (const Field& field : elements()) values.push_back(field.number());
  return values;
}

std::vector<int64_t> Field::integers() const {
  std::vector<int64_t> values;
  for (const Field& field : elements()) values.push_back(field.integer());
  return values;
}

std::vector<bool> Field::booleans() const {
  std::vector<bool> values;
  for (const Field& field : elements()) values.push_back(field.boolean());
  return values;
}

Field Arguments::operator()(size_t index, const char* name) const {
  const std::string path = std::string(function_) + "." + name;
  require(index < info_.Length() && !info_[index].IsUndefined(), ErrorCode::kInvalidArgument, path,
          ": missing argument (position ", index, ")");
  return Field(info_[index], path);
}

}  // namespace troupe::binding

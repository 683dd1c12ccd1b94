// SPDX-License-Identifier: Apache-2.0
// Status and Result: how every AGPCS function reports that it could not do its work.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <variant>

namespace agpcs {

/// The reason why something failed. Commands map these codes to exit codes (`exit_code`).
enum class StatusCode : std::uint8_t {
  kOk,
  kInvalidInput,  ///< the user's model, cluster, plan or flag is wrong: exit 1
  kUsage,         ///< the command line itself is wrong: exit 2
  kInfeasible,    ///< no plan fits: exit 3
  kUnavailable,   ///< a peer, a port, a device or a file is missing: exit 1
  kTimeout,       ///< a wait ended without its event: exit 1
  kPeerFailed,    ///< another rank failed; the message names it: exit 1
  kCancelled,     ///< stopped on request (signal, abort): exit 130
  kInternal,      ///< our bug: exit 70
};

/// Returns the exit code of the process for `code`: 0 ok, 1 input wrong, 2 usage, 3 infeasible, 70
/// our bug, 130 cancelled.
int exit_code(StatusCode code);

/// Success, or a code and a message that is ready to print. The message may span lines; it has no
/// trailing newline.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  explicit operator bool() const { return ok(); }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

/// A value, or the Status that explains why there is no value.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: a value is a result
  Result(Status status) : value_(std::move(status)) {}  // NOLINT: a failure is a result

  bool ok() const { return std::holds_alternative<T>(value_); }
  explicit operator bool() const { return ok(); }
  T& value() & { return checked(*this); }
  const T& value() const& { return checked(*this); }
  T&& value() && { return std::move(checked(*this)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  Status status() const { return ok() ? Status() : std::get<Status>(value_); }

 private:
  template <typename Self>
  static auto& checked(Self& self) {
    if (!self.ok()) std::abort();  // a bug in the caller: it did not check ok()
    return std::get<T>(self.value_);
  }
  std::variant<T, Status> value_;
};

inline Status invalid_input(std::string message) {
  return {StatusCode::kInvalidInput, std::move(message)};
}
inline Status internal_error(std::string message) {
  return {StatusCode::kInternal, std::move(message)};
}

}  // namespace agpcs

#define AGPCS_CONCAT_INNER_(a, b) a##b
#define AGPCS_CONCAT_(a, b) AGPCS_CONCAT_INNER_(a, b)

/// Evaluates `expr` (a Status or Result); on failure, returns its status from the enclosing
/// function.
#define AGPCS_RETURN_IF_ERROR(expr)                                    \
  do {                                                                 \
    if (::agpcs::Status agpcs_status_ = (expr); !agpcs_status_.ok()) { \
      return agpcs_status_;                                            \
    }                                                                  \
  } while (false)

/// `AGPCS_TRY(Plan plan, parse(text));` declares (or assigns) a variable from a Result; on failure,
/// it returns the status from the enclosing function.
#define AGPCS_TRY(declaration, expr) \
  AGPCS_TRY_IMPL_(AGPCS_CONCAT_(agpcs_result_, __LINE__), declaration, expr)
#define AGPCS_TRY_IMPL_(result, declaration, expr) \
  auto result = (expr);                            \
  if (!result.ok()) return result.status();        \
  declaration = std::move(result).value()

#include "core/launch/command/remote_shell.h"

#include <hora/printable.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "core/launch/command/command.h"
#include "core/launch/control/channel.h"

namespace hora::launch {
namespace {

/// Meaningful to a shell, and not to this reader.
constexpr std::string_view kRefused = "&|<>()`\n*?#!";

bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

/// Reads words and ends of statements from left to right.
class Reader {
 public:
  Reader(std::string_view text, const Lookup& lookup) : text_(text), lookup_(lookup) {}

  tl::expected<Command, std::string> command() {
    std::vector<std::string> words;
    while (!failed_) {
      skip_blanks();
      const bool ends = text_.empty();
      if (!ends && text_.front() != ';') {
        words.push_back(word());
        continue;
      }
      if (!ends) text_.remove_prefix(1);
      if (take_statement(words) || ends) break;
      words.clear();
    }
    if (!failed_ && !text_.empty()) fail("a second command");
    if (!failed_ && command_.arguments.empty()) fail("no command");
    if (failed_) return tl::unexpected(*failed_);
    return std::move(command_);
  }

 private:
  void fail(std::string_view found) {
    if (failed_) return;
    failed_ = "mpirun asks for a remote command that holds " + std::string(found) + " before " +
              in_quotes(text_) +
              "; horarun starts daemons without a shell and reads only words, quotes and "
              "assignments";
  }

  void skip_blanks() {
    while (!text_.empty() && is_blank(text_.front())) text_.remove_prefix(1);
  }

  /// True after the command itself, which is the last statement.
  bool take_statement(std::vector<std::string>& words) {
    if (words.empty() || words.front() == "export") return false;
    const std::size_t equals = words.front().find('=');
    const std::string_view first = words.front();
    if (equals == std::string_view::npos || !is_variable_name(first.substr(0, equals))) {
      command_.arguments = std::move(words);
      skip_blanks();
      return true;
    }
    for (const std::string_view assignment : words) {
      const std::size_t end = std::min(assignment.find('='), assignment.size());
      const std::string_view name = assignment.substr(0, end);
      if (end == assignment.size() || !is_variable_name(name)) fail("a command after assignments");
      if (failed_) return true;
      assign(std::string(name), std::string(assignment.substr(end + 1)));
    }
    return false;
  }

  void assign(std::string name, std::string value) {
    std::erase_if(command_.environment, [&](const Variable& known) { return known.name == name; });
    command_.environment.push_back({std::move(name), std::move(value)});
  }

  std::string value_of(std::string_view name) const {
    const auto known = std::ranges::find(command_.environment, name, &Variable::name);
    return known != command_.environment.end() ? known->value : lookup_(name);
  }

  std::string word() {
    std::string result;
    while (!failed_ && !text_.empty() && !is_blank(text_.front()) && text_.front() != ';') {
      const char c = text_.front();
      if (kRefused.find(c) != std::string_view::npos || c == '\0') {
        fail("the character " + in_quotes(std::string(1, c)));
      } else if (c == '\'') {
        single_quoted(result);
      } else if (c == '"') {
        double_quoted(result);
      } else if (c == '$') {
        expand(result);
      } else if (c == '\\') {
        text_.remove_prefix(1);
        if (text_.empty()) fail("a backslash at its end");
        take(result);
      } else {
        take(result);
      }
    }
    return result;
  }

  void take(std::string& result) {
    if (text_.empty()) return;
    result += text_.front();
    text_.remove_prefix(1);
  }

  void single_quoted(std::string& result) {
    const std::size_t end = text_.find('\'', 1);
    if (end == std::string_view::npos) return fail("a quotation that does not end");
    result += text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
  }

  void double_quoted(std::string& result) {
    text_.remove_prefix(1);
    while (!failed_ && !text_.empty() && text_.front() != '"') {
      if (text_.front() == '$') {
        expand(result);
        continue;
      }
      if (text_.front() == '`') return fail("a command within a quotation");
      const bool escapes = text_.front() == '\\' && text_.size() > 1 &&
                           std::string_view("$`\"\\").find(text_[1]) != std::string_view::npos;
      if (escapes) text_.remove_prefix(1);
      take(result);
    }
    if (text_.empty()) return fail("a quotation that does not end");
    text_.remove_prefix(failed_ ? 0 : 1);
  }

  /// $NAME, ${NAME} and ${NAME:-}.
  void expand(std::string& result) {
    std::string_view rest = text_.substr(1);
    const bool braces = rest.starts_with('{');
    if (braces) rest.remove_prefix(1);
    const auto end = std::ranges::find_if_not(rest, [](char c) {
      return is_variable_name(std::string{'_', c});
    });
    const std::string_view name = rest.substr(0, static_cast<std::size_t>(end - rest.begin()));
    rest.remove_prefix(name.size());
    if (braces && rest.starts_with(":-}")) rest.remove_prefix(2);
    if (!is_variable_name(name) || (braces && !rest.starts_with('}'))) {
      return fail("an expansion other than $NAME");
    }
    if (braces) rest.remove_prefix(1);
    result += value_of(name);
    text_ = rest;
    expanded_ += result.size();
    if (expanded_ > kLongestRemoteText) fail("expansions that are too long");
  }

  std::string_view text_;
  const Lookup& lookup_;
  Command command_;
  std::size_t expanded_ = 0;  ///< bytes, an upper bound of the work that expansions make
  std::optional<std::string> failed_;
};

}  // namespace

tl::expected<RemoteShellCall, std::string> parse_remote_shell_call(
    std::span<const std::string> arguments) {
  const auto host = std::ranges::find_if_not(
      arguments, [](const std::string& word) { return word.starts_with('-'); });
  if (host == arguments.end() || host->empty() || host + 1 == arguments.end()) {
    return tl::unexpected(std::string(
        "--remote-shell is for mpirun, which adds a host and a command: give it neither by hand"));
  }
  RemoteShellCall call{*host, {}};
  for (auto word = host + 1; word != arguments.end(); ++word) {
    if (!call.text.empty()) call.text += ' ';
    call.text += *word;
  }
  return call;
}

tl::expected<Command, std::string> parse_remote_command(std::string_view text,
                                                        const Lookup& lookup) {
  if (text.size() > kLongestRemoteText) {
    return tl::unexpected("mpirun asks for a remote command of " + std::to_string(text.size()) +
                          " bytes, more than " + std::to_string(kLongestRemoteText));
  }
  return Reader(text, lookup).command();
}

namespace {

int refuse(const std::string& reason) {
  std::fprintf(stderr, "horarun --remote-shell: %s\n", reason.c_str());
  return 1;
}

}  // namespace

int run_remote_shell(std::span<const std::string> arguments) {
  ::signal(SIGPIPE, SIG_IGN);
  const auto pipe = open_report_pipe();
  if (!pipe) return refuse(pipe.error());
  const auto call = parse_remote_shell_call(arguments);
  if (!call) return refuse(call.error());
  for (std::size_t sent = 0; sent < call->text.size(); sent += kMostOutputBytes) {
    StartRemote request;
    request.sender = ::getpid();
    request.host = call->host;
    request.text = call->text.substr(sent, kMostOutputBytes);
    request.complete = sent + kMostOutputBytes >= call->text.size();
    if (!send_report(pipe->pipe, request)) return refuse("the agent has ended");
  }
  return 0;
}

}  // namespace hora::launch

#include "core/launch/command/remote_shell.h"

#include <hora/printable.h>
#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "core/launch/control/channel.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

/// Meaningful to a shell, and not to this reader.
constexpr std::string_view kRefused = "&|<>()`\n*?#!";

bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

/// Reads words and ends of statements from left to right. Throws Refused.
class Reader {
 public:
  Reader(std::string_view text, const Lookup& lookup) : text_(text), lookup_(lookup) {}

  Command command() {
    while (command_.arguments.empty()) {
      std::vector<std::string> words;
      for (skip_blanks(); !text_.empty() && text_.front() != ';'; skip_blanks()) {
        words.push_back(word());
      }
      const bool ends = text_.empty();
      if (!ends) text_.remove_prefix(1);
      take_statement(words);
      if (ends && command_.arguments.empty()) fail("no command");
    }
    skip_blanks();
    if (!text_.empty()) fail("a second command");
    return std::move(command_);
  }

 private:
  [[noreturn]] void fail(std::string_view found) const {
    throw Refused{fmt::format(
        "mpirun asks for a remote command that holds {} before {}; horarun starts daemons without "
        "a shell and reads only words, quotes and assignments",
        found, in_quotes(text_))};
  }

  void skip_blanks() {
    while (!text_.empty() && is_blank(text_.front())) text_.remove_prefix(1);
  }

  /// Assignments, or the command itself.
  void take_statement(std::vector<std::string>& words) {
    if (words.empty() || words.front() == "export") return;
    for (const std::string& assignment : words) {
      const std::size_t equals = assignment.find('=');
      const std::string name = assignment.substr(0, equals);
      if (equals == assignment.npos || !is_variable_name(name)) {
        if (&assignment != &words.front()) fail("a command after assignments");
        command_.arguments = std::move(words);
        return;
      }
      auto& known = command_.environment;
      std::erase_if(known, [&](const Variable& variable) { return variable.name == name; });
      known.push_back({name, assignment.substr(equals + 1)});
    }
  }

  std::string value_of(std::string_view name) const {
    const auto known = std::ranges::find(command_.environment, name, &Variable::name);
    return known != command_.environment.end() ? known->value : lookup_(name);
  }

  std::string word() {
    std::string result;
    while (!text_.empty() && !is_blank(text_.front()) && text_.front() != ';') {
      const char c = text_.front();
      if (kRefused.find(c) != kRefused.npos || c == '\0') {
        fail("the character " + in_quotes(std::string(1, c)));
      } else if (c == '\'') {
        single_quoted(result);
      } else if (c == '"') {
        double_quoted(result);
      } else if (c == '$') {
        expand(result);
      } else {
        if (c == '\\') text_.remove_prefix(1);
        if (text_.empty()) fail("a backslash at its end");
        take(result);
      }
    }
    return result;
  }

  void take(std::string& result) {
    result += text_.front();
    text_.remove_prefix(1);
  }

  void single_quoted(std::string& result) {
    const std::size_t end = text_.find('\'', 1);
    if (end == text_.npos) fail("a quotation that does not end");
    result += text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
  }

  void double_quoted(std::string& result) {
    text_.remove_prefix(1);
    while (!text_.empty() && text_.front() != '"') {
      if (text_.front() == '$') {
        expand(result);
        continue;
      }
      if (text_.front() == '`') fail("a command within a quotation");
      const bool escapes = text_.front() == '\\' && text_.size() > 1 &&
                           std::string_view("$`\"\\").find(text_[1]) != std::string_view::npos;
      if (escapes) text_.remove_prefix(1);
      take(result);
    }
    if (text_.empty()) fail("a quotation that does not end");
    text_.remove_prefix(1);
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
      fail("an expansion other than $NAME");
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
  return RemoteShellCall{*host, fmt::format("{}", fmt::join(host + 1, arguments.end(), " "))};
}

tl::expected<Command, std::string> parse_remote_command(std::string_view text,
                                                        const Lookup& lookup) {
  if (text.size() > kLongestRemoteText) {
    return tl::unexpected(fmt::format("mpirun asks for a remote command of {} bytes, more than {}",
                                      text.size(), kLongestRemoteText));
  }
  return expected_of([&] { return Reader(text, lookup).command(); });
}

int run_remote_shell(std::span<const std::string> arguments) {
  ::signal(SIGPIPE, SIG_IGN);
  const auto refuse = [](const std::string& reason) {
    std::fprintf(stderr, "horarun --remote-shell: %s\n", reason.c_str());
    return 1;
  };
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

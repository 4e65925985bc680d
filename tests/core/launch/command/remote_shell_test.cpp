#include "core/launch/command/remote_shell.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hora::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string lookup(std::string_view name) {
  if (name == "LD_LIBRARY_PATH") return "/own lib";
  if (name == "PATH") return "/bin";
  return {};
}

Command command_in(const std::string& text) {
  auto command = parse_remote_command(text, lookup);
  EXPECT_TRUE(command) << text << ": " << (command ? "" : command.error());
  return command.value_or(Command{});
}

std::string refusal(const std::string& text) {
  const auto command = parse_remote_command(text, lookup);
  EXPECT_FALSE(command) << text;
  return command ? "" : command.error();
}

TEST(RemoteShellCall, IsAHostAndAText) {
  const std::vector<std::string> words = {
      "-x", "--remote-shell", "10.0.0.2", "\"/usr/bin/proxy\"", "--retries", "10"};
  const auto call = parse_remote_shell_call(words);
  ASSERT_TRUE(call);
  EXPECT_EQ(call->host, "10.0.0.2");
  EXPECT_EQ(call->text, "\"/usr/bin/proxy\" --retries 10");
}

TEST(RemoteShellCall, NeedsBoth) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{}, {"-x"}, {"host"}, {"", "command"}}) {
    const auto call = parse_remote_shell_call(words);
    ASSERT_FALSE(call);
    EXPECT_THAT(call.error(), HasSubstr("by hand"));
  }
}

TEST(RemoteCommand, OfOpenMpi4) {
  const Command command = command_in(
      R"x( /usr/bin/orted -mca orte_leave_session_attached "1" -mca ess "env" -mca )x"
      R"x(orte_node_regex "vm,[3:127].0.0.2@0(2)" -mca orte_hnp_uri "1.0;tcp://192.0.2.2:58009")x");
  EXPECT_THAT(command.arguments,
              ElementsAre("/usr/bin/orted", "-mca", "orte_leave_session_attached", "1", "-mca",
                          "ess", "env", "-mca", "orte_node_regex", "vm,[3:127].0.0.2@0(2)", "-mca",
                          "orte_hnp_uri", "1.0;tcp://192.0.2.2:58009"));
  EXPECT_THAT(command.environment, IsEmpty());
}

TEST(RemoteCommand, OfOpenMpi4WithAPrefix) {
  const Command command = command_in(
      R"(          PATH=/opt/bin:$PATH ; export PATH ; LD_LIBRARY_PATH=/opt/lib:${LD_LIBRARY_PATH:-} ; )"
      R"(export LD_LIBRARY_PATH ; DYLD_LIBRARY_PATH=/opt/lib:${DYLD_LIBRARY_PATH:-} ; )"
      R"(export DYLD_LIBRARY_PATH ;   /opt/bin/orted -mca ess "env")");
  EXPECT_THAT(command.arguments, ElementsAre("/opt/bin/orted", "-mca", "ess", "env"));
  EXPECT_THAT(command.environment, ElementsAre(Variable{"PATH", "/opt/bin:/bin"},
                                               Variable{"LD_LIBRARY_PATH", "/opt/lib:/own lib"},
                                               Variable{"DYLD_LIBRARY_PATH", "/opt/lib:"}));
}

TEST(RemoteCommand, OfOpenMpi5) {
  const Command command = command_in(
      R"(PRTE_PREFIX=/x;export PRTE_PREFIX;PMIX_PREFIX=/x;export PMIX_PREFIX;)"
      R"(LD_LIBRARY_PATH=/x/lib:/x/lib:$LD_LIBRARY_PATH;export LD_LIBRARY_PATH;/x/bin/prted )"
      R"(--leave-session-attached --prtemca prte_hnp_uri "prterun-vm-1@0.0;tcp://192.0.2.2:1:64,24" )"
      R"(--prtemca plm_ssh_agent "/opt/horarun --remote-shell")");
  EXPECT_THAT(command.arguments,
              ElementsAre("/x/bin/prted", "--leave-session-attached", "--prtemca", "prte_hnp_uri",
                          "prterun-vm-1@0.0;tcp://192.0.2.2:1:64,24", "--prtemca", "plm_ssh_agent",
                          "/opt/horarun --remote-shell"));
  EXPECT_THAT(command.environment,
              ElementsAre(Variable{"PRTE_PREFIX", "/x"}, Variable{"PMIX_PREFIX", "/x"},
                          Variable{"LD_LIBRARY_PATH", "/x/lib:/x/lib:/own lib"}));
}

TEST(RemoteCommand, OfHydra) {
  const Command command =
      command_in(R"("/usr/bin/hydra_pmi_proxy" --control-port vm:36421 --rmk user --usize -2)");
  EXPECT_THAT(command.arguments, ElementsAre("/usr/bin/hydra_pmi_proxy", "--control-port",
                                             "vm:36421", "--rmk", "user", "--usize", "-2"));
}

TEST(RemoteCommand, QuotesMeanWhatTheyMeanInAShell) {
  EXPECT_THAT(command_in(R"(p 'a $PATH "b"' "c'd" "\$e\"\\\f" g\ h "" '' i"j"'k')").arguments,
              ElementsAre("p", "a $PATH \"b\"", "c'd", "$e\"\\\\f", "g h", "", "", "ijk"));
  EXPECT_THAT(command_in("p \"$PATH\" ${PATH}x $NONE-").arguments,
              ElementsAre("p", "/bin", "/binx", "-"));
}

TEST(RemoteCommand, LaterAssignmentsSeeEarlierOnes) {
  EXPECT_THAT(command_in("A=1;A=$A$A;B=$A;p").environment,
              ElementsAre(Variable{"A", "11"}, Variable{"B", "11"}));
}

TEST(RemoteCommand, RefusesTheRestOfAShellsLanguage) {
  for (const char* const text :
       {"p | q",     "p & q", "p && q", "p > f", "p < f",     "p `q`", "p $(q)",   "p \"$(q)\"",
        "p \"`q`\"", "p; q",  "A=1 p",  "p $1",  "p ${A:-b}", "p ${A", "p 'a",     "p \"a",
        "p \\",      "p\nq",  "(p)",    "p *",   "",          " ; ",   "export A", "p $"}) {
    EXPECT_THAT(refusal(text), HasSubstr("without a shell")) << text;
  }
  EXPECT_THAT(refusal(std::string("p a\0b", 5)), HasSubstr("\\x00"));
}

TEST(RemoteCommand, IsBounded) {
  EXPECT_THAT(refusal("p " + std::string(kLongestRemoteText, 'x')), HasSubstr("bytes, more than"));
  std::string doubling = "A=" + std::string(1000, 'x');
  for (int i = 0; i < 40; ++i) doubling += ";A=$A$A";
  EXPECT_THAT(refusal(doubling + ";p"), HasSubstr("too long"));
}

}  // namespace
}  // namespace hora::launch

// Command lines of horarun, Horovod, Open MPI, MPICH and torchrun, with what comes of each, word
// for word: command_lines.txt. TEST_UPDATE_GOLDEN=1 writes it anew.
#include "core/launch/options/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

#include <cctype>

#include "core/launch/text.h"
#include "tests/core/launch/texts.h"
#include "tests/support/golden.h"
#include "tests/support/seed.h"

namespace hora::launch {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

/// Differences from the options of an empty line.
std::string summary(const LaunchOptions& options) {
  const LaunchOptions none;
  std::string text;
  const auto add = [&](std::string_view name, const auto& value) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  };
  const auto add_text = [&](std::string_view name, const std::string& value) {
    if (!value.empty()) add(name, "'" + value + "'");
  };
  const auto add_all = [&](std::string_view name, const std::vector<std::string>& values) {
    for (const std::string& value : values) add(name, "'" + value + "'");
  };
  const auto add_flag = [&](std::string_view name, bool flag) {
    if (flag) add(name, "on");
  };
  if (options.action != Action::run) add("action", static_cast<int>(options.action));
  if (options.np) add("np", *options.np);
  for (const HostSlots& host : options.hosts) {
    add("host", fmt::format("{}:{}{}", host.name, host.slots, host.counted ? "" : "+"));
  }
  if (options.ranks_per_host) add("ranks_per_host", *options.ranks_per_host);
  add_flag("oversubscribe", options.oversubscribe);
  add_text("folder", options.folder);
  add_text("mpirun", options.mpirun);
  if (const auto& elastic = options.elastic) {
    add("elastic", fmt::format("{}-{}", elastic->min_np, elastic->max_np));
    if (elastic->reset_limit) add("reset_limit", *elastic->reset_limit);
    add("elastic_timeout", elastic->timeout.count());
    add("pauses",
        fmt::format("{}-{}", elastic->shortest_pause.count(), elastic->longest_pause.count()));
    add_text("script", elastic->discovery_script);
  }
  if (options.rendezvous) add("rendezvous", to_url(*options.rendezvous));
  if (options.nnodes != 1) add("nnodes", options.nnodes);
  if (options.node_rank) add("node_rank", *options.node_rank);
  add_text("token_file", options.token_file);
  if (options.rendezvous_id != none.rendezvous_id) add("id", options.rendezvous_id);
  add_all("interface", options.network_interfaces);
  if (options.ssh_port) add("ssh_port", *options.ssh_port);
  add_text("ssh_identity_file", options.ssh_identity_file);
  if (options.start_timeout != none.start_timeout) add("timeout", options.start_timeout.count());
  add_flag("root", options.allow_run_as_root);
  if (options.binding != Binding::automatic) add("binding", name_of(options.binding));
  add_all("mpi_arg", options.mpi_args);
  for (const ForwardedVariable& each : options.variables) {
    add("x", each.name + (each.value ? "='" + *each.value + "'" : ""));
  }
  for (const SettingAssignment& each : options.settings) add(each.variable, each.value);
  add_text("output_folder", options.output_folder);
  if (options.prefix_output != Switch::automatic) {
    add("prefix_output", options.prefix_output == Switch::on ? "on" : "off");
  }
  if (!options.shown_ranks.empty())
    add("ranks", fmt::format("{}", fmt::join(options.shown_ranks, ",")));
  add_flag("verbose", options.verbose);
  add_flag("dry_run", options.dry_run);
  add_flag("watch", options.watch);
  if (options.watch_interval) add("watch_interval", *options.watch_interval);
  add_text("diagnose", options.diagnose_folder);
  add_all("program", options.program);
  for (const std::string& notice : options.notices) text += "\n# " + notice;
  return text;
}

/// "\n", "\0", "\t" and "\\" as what they stand for.
std::string unescaped(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escapes = text[i] == '\\' && i + 1 < text.size();
    const char c = escapes ? text[++i] : text[i];
    result += !escapes ? c : c == 'n' ? '\n' : c == '0' ? '\0' : c == 't' ? '\t' : c;
  }
  return result;
}

/// The outcome of a line: assignments of variables, a launcher's name, its arguments. @YAML and
/// @HOSTS before a file's text stand for its path.
std::string outcome_of(std::string_view line) {
  const internal::test::TemporaryFolder folder;
  test::Line words = split_words(line).value();
  const auto name = std::ranges::find_if(
      words, [](const std::string& word) { return word.find('=') == std::string::npos; });
  const test::Line environment(words.begin(), name);
  words.erase(words.begin(), name + 1);
  for (std::string& word : words) {
    for (const std::string_view kind : {"@YAML:", "@HOSTS:"}) {
      if (!word.starts_with(kind)) continue;
      word = test::written(folder, "file", unescaped(word.substr(kind.size())));
    }
  }
  const auto options = test::parse(words, environment);
  std::string outcome = options ? summary(*options) : "refused: " + options.error();
  for (std::size_t place; (place = outcome.find(folder.file("file"))) != std::string::npos;) {
    outcome.replace(place, folder.file("file").size(), "FILE");
  }
  return outcome;
}

TEST(CommandLine, HasItsOutcomeWordForWord) {
  EXPECT_GT(
      internal::test::expect_golden_outcomes("core/launch/options/command_lines.txt", outcome_of),
      200);
}

TEST(CommandLine, LongListsAreQuick) {
  EXPECT_EQ(test::parsed({"--ranks", "0-65535,7", "t"}).shown_ranks.size(), 65536u);
  std::string interfaces = "e0";
  for (int i = 1; i < 20000; ++i) interfaces += ",e" + std::to_string(i);
  EXPECT_THAT(test::refusal({"--network-interfaces", interfaces, "t"}), HasSubstr("more than 64"));
  EXPECT_THAT(test::refusal({"--" + std::string(100000, 'x'), "t"}), HasSubstr("no flag of this"));
}

TEST(ConfigFile, IsBounded) {
  const internal::test::TemporaryFolder folder;
  std::string deep;
  for (int i = 0; i < 250; ++i) deep += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
  for (const std::string& text :
       {std::string(60000, '['), "np: " + std::string(60000, '{'), deep,
        std::string("a: &a [x, x]\nb: &b [*a, *a]\n"), "# " + std::string(65536, 'x')}) {
    const std::string path = test::written(folder, "job.yaml", text);
    EXPECT_THAT(test::refusal({"--config-file", path, "t"}), HasSubstr("job.yaml"));
  }
  EXPECT_THAT(test::refusal({"--config-file", "/dev/zero", "t"}), HasSubstr("is larger than"));
}

TEST(Settings, HaveAFlagEachWhichIsInTheHelp) {
  const std::string help = help_text();
  for (const SettingDescription& setting : setting_descriptions()) {
    std::string flag = "--" + std::string(setting.variable.substr(5));
    for (char& c : flag) c = static_cast<char>(std::tolower(c));
    if (setting.default_value != "off" || !setting.choices.empty()) {  // else a text
      EXPECT_THAT(test::parsed({flag, setting.default_value, "t"}).settings,
                  testing::ElementsAre(
                      SettingAssignment{std::string(setting.variable), setting.default_value}));
    }
    for (const std::string_view choice : setting.choices) {
      EXPECT_TRUE(test::parse({flag + "=" + std::string(choice), "t"}, {})) << flag << choice;
    }
    std::ranges::replace(flag, '_', '-');
    EXPECT_THAT(help, HasSubstr("\n  " + flag));
  }
}

TEST(Help, KeepsWithinItsWidth) {
  const std::string text = help_text();
  for (const std::string_view line : split(text, '\n')) {
    EXPECT_LE(line.size(), kHelpWidth) << line;
    EXPECT_FALSE(line.ends_with(' ')) << line;
  }
  test::expect_texts("help", text);
}

TEST(Layout, EveryRankHasOneHost) {
  auto random = internal::test::generator();
  for (int round = 0; round < 2000; ++round) {
    std::vector<HostSlots> hosts(1 + random() % 6);
    for (HostSlots& host : hosts) {
      host.name = std::string(1, static_cast<char>('a' + (&host - hosts.data())));
      host.slots = 1 + static_cast<int>(random() % 5);
      host.counted = random() % 2 == 0;
    }
    const bool oversubscribe = random() % 2 == 0;
    const int np = 1 + static_cast<int>(random() % 40);
    const bool grows = oversubscribe || !std::ranges::all_of(hosts, &HostSlots::counted);
    const auto layout = lay_out_ranks(hosts, np, oversubscribe);
    ASSERT_EQ(layout.has_value(), grows || np <= total_slots(hosts));
    int next = 0;
    for (const HostRanks& part : layout.value_or(std::vector<HostRanks>())) {
      ASSERT_EQ(part.first, next);
      ASSERT_GT(part.ranks, 0);
      const auto host = std::ranges::find(hosts, part.name, &HostSlots::name);
      ASSERT_TRUE(part.ranks <= host->slots || oversubscribe || !host->counted);
      next += part.ranks;
    }
    ASSERT_EQ(next, layout ? np : 0);
  }
}

}  // namespace
}  // namespace hora::launch

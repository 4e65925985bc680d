#include "core/launch/live/live_view.h"

#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <numeric>
#include <string_view>

#include "core/flight/record_reader.h"
#include "core/launch/guard/guard.h"

namespace hora::launch {
namespace {

using internal::RecordState;

/// A rank that has done nothing for longer is said to.
constexpr std::uint64_t kIdleMilliseconds = 5000;
constexpr std::size_t kWidestCell = 32;
/// Above the ranks: of the job, and of headings.
constexpr std::size_t kTopLines = 2;
const std::vector<std::string> kHeadings{"rank",  "host",   "collectives", "last collective",
                                         "last",  "median", "p99",         "lost in",
                                         "state", "doing"};

bool is_text(std::size_t column) {
  return column == 1 || column == 3 || column >= 7;
}

/// True for a byte of UTF-8 that begins a character.
bool begins(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
}

/// Characters of a text in UTF-8.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins));
}

/// The first characters.
std::string cut(std::string_view text, std::size_t most) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (begins(text[i]) && width++ == most) return std::string(text.substr(0, i));
  }
  return std::string(text);
}

/// Names differ at their ends: of long ones the beginning is left out.
std::string cut_front(const std::string& text, std::size_t most) {
  std::string_view rest = text;
  while (width_of(rest) > most) {
    rest.remove_prefix(1);
    while (!rest.empty() && !begins(rest.front())) rest.remove_prefix(1);
  }
  return std::string(rest);
}

std::string line_of(const std::vector<std::string>& cells, const std::vector<std::size_t>& widths,
                    std::size_t columns) {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::string padding(widths[i] - width_of(cells[i]), ' ');
    line += (i > 0 ? "  " : "") + (is_text(i) ? cells[i] + padding : padding + cells[i]);
  }
  line = cut(line, columns);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string span_text(Moment length) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(length).count();
  if (seconds < 60) return fmt::format("{} s", seconds);
  return fmt::format("{} min {} s", seconds / 60, seconds % 60);
}

}  // namespace

LiveView::LiveView(const LiveOptions& options, const std::vector<JobHost>& hosts, Moment now)
    : options_(options),
      start_(now),
      next_(now + std::chrono::duration_cast<Moment>(options.interval)) {
  for (const JobHost& host : hosts) {
    host_names_.push_back(printable(host.name));
    ranks_.resize(ranks_.size() + static_cast<std::size_t>(host.ranks),
                  Rank{.host = host_names_.back()});
  }
}

void LiveView::on_message(std::size_t host, const Message& message, Moment now) {
  if (host >= host_names_.size()) return;
  if (const auto* const arrivals = std::get_if<ArrivalsSeen>(&message)) {
    note(*arrivals, now);
  } else if (const auto* const started = std::get_if<RankStarted>(&message)) {
    Rank* const known = rank(started->rank);
    if (known) *known = Rank{.host = host_names_[host], .started = true};
  } else if (const auto* const seen = std::get_if<RankSeen>(&message)) {
    Rank* const known = rank(seen->rank);
    if (!known) return;
    known->seen = *seen;
    known->seen->collective = printable(seen->collective);
    known->seen->phase = printable(seen->phase);
  } else if (const auto* const stopped = std::get_if<RankStopped>(&message)) {
    if (Rank* const known = rank(stopped->rank)) known->stopped = stopped->stopped;
  } else if (const auto* const ended = std::get_if<RankEnded>(&message)) {
    if (Rank* const known = rank(ended->rank)) known->ended = true;
  }
}

LiveView::Rank* LiveView::rank(int number) {
  const bool exists = number >= 0 && static_cast<std::size_t>(number) < ranks_.size();
  return exists ? &ranks_[static_cast<std::size_t>(number)] : nullptr;
}

void LiveView::note(const ArrivalsSeen& seen, Moment now) {
  if (arrivals_at_ && seen.steps >= steps_ && now > *arrivals_at_) {
    steps_a_second_ = static_cast<double>(seen.steps - steps_) /
                      std::chrono::duration<double>(now - *arrivals_at_).count();
  }
  arrivals_at_ = now;
  steps_ = seen.steps;
  decisions_ = seen.decisions;
  most_often_last_ = nullptr;
  for (Rank& each : ranks_) each.late.reset();
  for (const wire::ArrivalsRow& row : seen.rows) {
    Rank* const known = rank(row.rank());
    if (!known) continue;
    const double all = std::max<double>(1, static_cast<double>(decisions_));
    known->late =
        Lateness{.last = row.last(), .share = fmt::format("{:.0f} %", 100 * row.last() / all)};
    if (row.last() == 0) continue;
    known->late->median = fmt::format("{:.3g} ms", row.median_ms());
    known->late->p99 = fmt::format("{:.3g} ms", row.p99_ms());
    if (row.phase() < seen.phases.size()) known->late->phase = printable(seen.phases[row.phase()]);
    if (&row == seen.rows.data()) most_often_last_ = known;
  }
}

std::string LiveView::state_of(const Rank& rank) {
  if (rank.ended) return "ended";
  if (rank.stopped) return "stopped";
  if (!rank.seen) return rank.started ? "started" : "not started";
  if (rank.seen->state == kNotBegun) return "before hora::init";
  const auto state = static_cast<RecordState>(rank.seen->state);
  if (state > internal::last_of<RecordState>) return "unknown";
  if (state == RecordState::starting) return "in hora::init";
  if (state != RecordState::initialised) return std::string(name_of(state));
  const std::string idle = rank.seen->idle_ms < kIdleMilliseconds
                               ? ""
                               : ", idle " + span_text(Moment(rank.seen->idle_ms));
  return (rank.seen->waits ? "waits" : "runs") + idle;
}

/// How far the job is, and who came last most often.
std::string LiveView::progress(Moment now) const {
  std::string text = span_text(now - start_);
  if (!arrivals_at_) return text;
  const std::string rate =
      steps_a_second_ > 0 ? fmt::format(", {:.3g} a second", steps_a_second_) : "";
  text += fmt::format(": step {}{}, {} decisions", steps_, rate, decisions_);
  if (most_often_last_ == nullptr) return text;
  const Lateness& late = *most_often_last_->late;
  return text + fmt::format("; most often last: rank {} (host {}), {}, median {}, p99 {}{}",
                            most_often_last_ - ranks_.data(), most_often_last_->host, late.share,
                            late.median, late.p99,
                            late.phase.empty() ? "" : ", mostly in " + in_quotes(late.phase));
}

std::vector<std::string> LiveView::cells_of(std::size_t number) const {
  const Rank& rank = ranks_[number];
  const RankSeen seen = rank.seen.value_or(RankSeen());
  const Lateness late = rank.late.value_or(Lateness());
  return {std::to_string(number),
          rank.host,
          rank.seen ? std::to_string(seen.submitted) : "",
          cut_front(seen.collective, kWidestCell),
          late.share,
          late.median,
          late.p99,
          cut(late.phase, kWidestCell),
          state_of(rank),
          cut(seen.phase, kWidestCell)};
}

std::vector<std::size_t> LiveView::shown(std::size_t most) const {
  std::vector<std::size_t> ranks(ranks_.size());
  std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  if (ranks.size() <= most) return ranks;
  std::ranges::stable_sort(ranks, std::greater(), [&](std::size_t rank) {
    return ranks_[rank].late.value_or(Lateness()).last;
  });
  ranks.resize(most);
  std::ranges::sort(ranks);
  return ranks;
}

std::string LiveView::table(TableSize size, Moment now) const {
  // The last row stays free, for the cursor.
  const std::size_t place = std::max(size.rows, kTopLines + 3) - 1 - kTopLines;
  const auto ranks = shown(ranks_.size() <= place ? place : place - 1);
  std::vector<std::vector<std::string>> lines{kHeadings};
  for (const std::size_t rank : ranks) lines.push_back(cells_of(rank));
  std::vector<std::size_t> widths(kHeadings.size());
  for (const auto& cells : lines) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      widths[i] = std::max(widths[i], width_of(cells[i]));
    }
  }
  std::string text = cut(progress(now), size.columns) + "\n";
  for (const auto& cells : lines) text += line_of(cells, widths, size.columns);
  if (ranks.size() < ranks_.size()) {
    text +=
        cut(fmt::format("and {} more ranks", ranks_.size() - ranks.size()), size.columns) + "\n";
  }
  return text;
}

std::string LiveView::line(Moment now) const {
  // Ranks in one state are counted; a rank that is alone in its own is named.
  std::map<std::string, std::vector<std::size_t>> states;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const std::string state = state_of(ranks_[rank]);
    states[state.substr(0, state.find(','))].push_back(rank);
  }
  std::string text = progress(now);
  for (const auto& [state, ranks] : states) {
    text += ranks.size() == 1 ? fmt::format("; {}: rank {}", state, ranks.front())
                              : fmt::format("; {}: {} ranks", state, ranks.size());
  }
  return text;
}

void LiveView::erase() {
  if (drawn_lines_ == 0) return;
  // ECMA-48: cursor up (CUU), erase to the end of the page (ED).
  ::dprintf(options_.descriptor, "\r\x1b[%zuA\x1b[J", drawn_lines_);
  drawn_lines_ = 0;
}

void LiveView::on_time(bool in_line, Moment now) {
  const bool is_due = now >= next_;
  if (is_due) next_ = now + std::chrono::duration_cast<Moment>(options_.interval);
  if (!options_.on_terminal) {
    if (is_due) ::dprintf(options_.descriptor, "horarun: %s\n", line(now).c_str());
    return;
  }
  if (!is_due && drawn_lines_ > 0) return;
  winsize window{};
  TableSize size;
  if (::ioctl(options_.descriptor, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) {
    size = {window.ws_row, window.ws_col};
  }
  const bool is_below_text = in_line && drawn_lines_ == 0;
  erase();
  const std::string text = table(size, now);
  ::dprintf(options_.descriptor, "%s%s", is_below_text ? "\n" : "", text.c_str());
  drawn_lines_ = static_cast<std::size_t>(std::ranges::count(text, '\n'));
}

}  // namespace hora::launch

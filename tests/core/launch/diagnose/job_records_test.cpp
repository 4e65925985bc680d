#include "core/launch/diagnose/job_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/flight/record_reader.h"
#include "core/launch/diagnose/diagnosis.h"
#include "tests/core/launch/diagnose/constructed_job.h"
#include "tests/support/temporary_folder.h"

namespace hora::launch {
namespace {

using internal::test::TemporaryFolder;
using test::ConstructedJob;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(JobRecords, AreReadFromAFolder) {
  const TemporaryFolder folder;
  ConstructedJob job({1, 2});
  job.all_submit("a", 1001.0, 1);
  for (const auto& [rank, record] : job.records().of_rank) {
    ASSERT_TRUE(internal::write_record(record, folder.path()));
  }
  // Passed over.
  for (const char* name : {"notes.txt", "hora-record.json", "hora-record.x.json",
                           "hora-record.-1.json", "hora-record.99999999.json"}) {
    std::ofstream(folder.file(name)) << "{}";
  }
  const JobRecords read = read_records(folder.path()).value();
  EXPECT_EQ(read.size, 3);
  EXPECT_EQ(read.of_rank, job.records().of_rank);
  EXPECT_THAT(read.problems, ElementsAre());
}

TEST(JobRecords, NameFilesThatCannotBeUsed) {
  const TemporaryFolder folder;
  ConstructedJob job({3});
  ASSERT_TRUE(internal::write_record(job.rank(0), folder.path()));
  std::ofstream(folder.file("hora-record.1.json")) << "{\"hora_record\":";
  std::ofstream(folder.file("hora-record.2.json")) << internal::to_json(job.rank(1));
  const JobRecords read = read_records(folder.path()).value();
  EXPECT_EQ(read.size, 3);
  EXPECT_EQ(read.of_rank.size(), 1u);
  EXPECT_THAT(read.problems,
              ElementsAre(HasSubstr("hora-record.1.json\" cannot be used: it is no JSON"),
                          HasSubstr("hora-record.2.json\" cannot be used: it is rank 1's")));
  EXPECT_THAT(to_text(diagnose(read)), HasSubstr("it is no JSON"));
}

// The guard of a rank that died before hora::init knows which one it was.
TEST(JobRecords, TakeTheRankOfTheirFileWhereTheyHaveNone) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("hora-record.4.json")) << internal::to_json(internal::FlightRecord{});
  const JobRecords read = read_records(folder.path()).value();
  EXPECT_EQ(read.size, 5);
  EXPECT_EQ(read.of_rank.at(4).rank, 4);
}

TEST(JobRecords, SayWhyThereAreNone) {
  const TemporaryFolder folder;
  EXPECT_THAT(diagnose(folder.file("missing")).error(), HasSubstr("cannot be read: No such file"));
  EXPECT_THAT(diagnose(folder.path().string()).error(),
              HasSubstr("has no hora-record.<rank>.json; give the folder"));
  std::ofstream(folder.file("hora-record.0.json")) << "[]";
  EXPECT_THAT(diagnose(folder.path().string()).error(),
              HasSubstr("has no record that can be used: "));
}

}  // namespace
}  // namespace hora::launch

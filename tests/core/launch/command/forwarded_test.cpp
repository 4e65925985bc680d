#include "core/launch/command/forwarded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hora::launch {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Forwarded, AreSettingsAndSearchPaths) {
  for (const char* const name :
       {"HORA_LOG_LEVEL", "NCCL_DEBUG", "UCX_TLS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PATH",
        "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "OMPI_MCA_btl", "PRTE_MCA_plm"}) {
    EXPECT_TRUE(is_forwarded(name)) << name;
  }
  for (const char* const name :
       {"HORARUN_TOKEN", "HORARUN_", "SSH_AUTH_SOCK", "SLURM_JOB_ID", "DISPLAY", "HOME", "TMPDIR",
        "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "OMPI_MCA_orte_hnp_uri",
        "OMPI_MCA_ess_base_vpid", "LD_PRELOAD", "AWS_SECRET_ACCESS_KEY", "path", "PATHS", "HORA",
        ""}) {
    EXPECT_FALSE(is_forwarded(name)) << name;
  }
}

TEST(Forwarded, VariablesOfAnEnvironment) {
  const char* const entries[] = {
      "A=1", "B=x=y", "C=", "noequals", "=d", "1A=2", "BASH_FUNC_f%%=()", nullptr};
  EXPECT_THAT(variables_of(entries),
              ElementsAre(Variable{"A", "1"}, Variable{"B", "x=y"}, Variable{"C", ""}));
}

const std::vector<Variable> kEnvironment = {
    {"PATH", "/bin"}, {"HOME", "/home"}, {"HORA_SPIN", "0"}, {"MINE", "a b"}, {"HORARUN_X", "t"}};

TEST(Forwarded, AreThoseOfTheListAndTheUsers) {
  EXPECT_THAT(*forwarded_variables(kEnvironment, {}),
              ElementsAre(Variable{"HORA_SPIN", "0"}, Variable{"PATH", "/bin"}));
  EXPECT_THAT(*forwarded_variables(kEnvironment, {"MINE", "HOME", "PATH=/x", "NEW=", "MINE"}),
              ElementsAre(Variable{"HOME", "/home"}, Variable{"HORA_SPIN", "0"},
                          Variable{"MINE", "a b"}, Variable{"NEW", ""}, Variable{"PATH", "/x"}));
}

TEST(Forwarded, RefuseWhatCannotBeGiven) {
  EXPECT_THAT(forwarded_variables(kEnvironment, {"NONE"}).error(),
              AllOf(HasSubstr("-x NONE"), HasSubstr("not set")));
  EXPECT_THAT(forwarded_variables(kEnvironment, {"HORARUN_X"}).error(), HasSubstr("horarun's own"));
  for (const char* const name : {"", "=1", "1A", "A,B", "A B", "-A", "A;B=1", "\n"}) {
    EXPECT_THAT(forwarded_variables(kEnvironment, {name}).error(), HasSubstr("letters, digits"));
  }
}

}  // namespace
}  // namespace hora::launch

// Lines of documentation, READMEs and scripts of Horovod's, Open MPI's, MPICH's and torchrun's
// users: each runs after its first word is changed to horarun. Variables of their shells have been
// given values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/launch/options/text.h"
#include "tests/core/launch/options/parsed.h"
#include "tests/support/temporary_folder.h"

namespace hora::launch {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::SizeIs;

/// The options of a line whose first word is another launcher's.
LaunchOptions of_line(std::string_view line, const std::string& hostfile = "") {
  std::vector<std::string> words = split_words(line).value();
  words.erase(words.begin());
  for (std::string& word : words) {
    if (word == "HOSTFILE") word = hostfile;
  }
  return test::parsed(words);
}

TEST(RealLines, OfHorovodsDocumentation) {
  EXPECT_EQ(of_line("horovodrun -np 4 -H localhost:4 python train.py").np, 4);
  EXPECT_THAT(
      of_line("horovodrun -np 16 -H server1:4,server2:4,server3:4,server4:4 python train.py").hosts,
      SizeIs(4));
  EXPECT_EQ(of_line("horovodrun -np 4 --autotune python train.py").notices.size(), 1u);
  EXPECT_EQ(of_line("horovodrun -np 4 --autotune --autotune-log-file /tmp/autotune_log.csv python "
                    "train.py")
                .notices.size(),
            2u);
  EXPECT_THAT(of_line("horovodrun -np 4 --timeline-filename /path/to/timeline.json python train.py")
                  .settings,
              ElementsAre(SettingAssignment{"HORA_TIMELINE", "/path/to/timeline.json"}));
  EXPECT_THAT(of_line("horovodrun -np 4 --timeline-filename /path/to/timeline.json "
                      "--timeline-mark-cycles python train.py")
                  .notices,
              SizeIs(1));
  EXPECT_THAT(
      of_line("horovodrun -np 4 --fusion-threshold-mb 32 --cycle-time-ms 3.5 python train.py")
          .settings,
      ElementsAre(SettingAssignment{"HORA_FUSION_THRESHOLD", "32MiB"}));
  EXPECT_EQ(of_line("horovodrun --gloo -np 4 -H localhost:4 python train.py").np, 4);
  EXPECT_THAT(
      of_line("horovodrun --mpi-args=\"--map-by ppr:6:node\" -np 4 python train.py").mpi_args,
      ElementsAre("--map-by", "ppr:6:node"));
  EXPECT_EQ(of_line("horovodrun -np 16 -H host1:4,host2:4,host3:4,host4:4 -p 12345 python "
                    "keras_mnist_advanced.py")
                .ssh_port,
            12345);
  EXPECT_EQ(of_line("horovodrun --check-build").action, Action::check_build);
  EXPECT_EQ(
      of_line("horovodrun -np 2 --start-timeout 600 -H a:1,b:1 python train.py").start_timeout,
      std::chrono::seconds(600));
  EXPECT_THAT(of_line("horovodrun -np 16 -H server1:8,server2:8 --no-stall-check --log-level INFO "
                      "python train.py")
                  .settings,
              ElementsAre(SettingAssignment{"HORA_STALL_WARNING", "0"},
                          SettingAssignment{"HORA_LOG_LEVEL", "info"}));
}

TEST(RealLines, OfHorovodsUsers) {
  const internal::test::TemporaryFolder folder;
  const std::string hostfile = test::written(folder, "hosts", "aa slots=32\nbb slots=32\n");
  EXPECT_TRUE(
      of_line("horovodrun -np 4 -H localhost:4 --verbose python horovod_distributed.py").verbose);
  EXPECT_EQ(of_line("horovodrun -np 64 --hostfile HOSTFILE python train_horovod.py --lr 0.05 "
                    "--num-epochs 270 --batch-size 128",
                    hostfile)
                .np,
            64);
  EXPECT_EQ(of_line("horovodrun -np 6 -hostfile HOSTFILE python train.py", hostfile).hosts.size(),
            2u);
  EXPECT_THAT(of_line("horovodrun -np 8 -H 10.0.0.1:4,10.0.0.2:4 --network-interface eth0 python3 "
                      "train.py --steps 10000 --batch-size 128")
                  .network_interfaces,
              ElementsAre("eth0"));
}

TEST(RealLines, OfOpenMpisUsers) {
  const internal::test::TemporaryFolder folder;
  const std::string hostfile = test::written(folder, "hosts", "aa slots=8\nbb slots=8\n");
  const LaunchOptions horovods = of_line(
      "mpirun -np 16 -H server1:4,server2:4,server3:4,server4:4 -bind-to none -map-by slot "
      "-x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH -mca pml ob1 -mca btl ^openib "
      "-mca btl_tcp_if_exclude lo,docker0 python train.py");
  EXPECT_EQ(horovods.binding, Binding::none);
  EXPECT_THAT(horovods.variables, ElementsAre(ForwardedVariable{"NCCL_DEBUG", "INFO"},
                                              ForwardedVariable{"LD_LIBRARY_PATH", std::nullopt},
                                              ForwardedVariable{"PATH", std::nullopt}));
  EXPECT_THAT(horovods.mpi_args, ElementsAre("--mca", "pml", "ob1", "--mca", "btl", "^openib",
                                             "--mca", "btl_tcp_if_exclude", "lo,docker0"));
  EXPECT_EQ(of_line("mpirun -np 16 -H server1:4,server2:4,server3:4,server4:4 -bind-to none "
                    "-map-by slot -mca plm_rsh_args \"-p 12345\" -x NCCL_SOCKET_IFNAME=^lo,docker0 "
                    "python train.py")
                .ssh_port,
            12345);
  const LaunchOptions as_root = of_line(
      "mpirun --allow-run-as-root --mca btl_tcp_if_include ens12f0 -bind-to socket -map-by "
      "slot -x LD_LIBRARY_PATH -np 8 -H 192.168.0.12:8 -x NCCL_IB_DISABLE=0 -mca pml ob1 "
      "--oversubscribe python3 main.py");
  EXPECT_TRUE(as_root.allow_run_as_root);
  EXPECT_TRUE(as_root.oversubscribe);
  EXPECT_EQ(as_root.binding, Binding::numa);
  EXPECT_EQ(of_line("mpirun -np 2 --hostfile HOSTFILE -x MASTER_ADDR=149.165.154.253 -x "
                    "NCCL_SOCKET_IFNAME=enp1s0 -x PATH -bind-to none -map-by slot -mca pml ob1 "
                    "python3 main.py --tau 5",
                    hostfile)
                .program.front(),
            "python3");
  EXPECT_EQ(of_line("mpirun --hostfile HOSTFILE --map-by ppr:4:node ./train", hostfile).np, 8);
  EXPECT_EQ(of_line("mpirun -npernode 2 -machinefile HOSTFILE ./train", hostfile).np, 4);
  EXPECT_EQ(of_line("mpirun -n 4 --tag-output --report-bindings ./hello_c").prefix_output,
            Switch::on);
  EXPECT_EQ(of_line("mpirun -H aa,aa,bb ./a.out").np, 3);
}

TEST(RealLines, OfMpichsUsers) {
  const internal::test::TemporaryFolder folder;
  const std::string hostfile = test::written(folder, "hosts", "aa:2\nbb:2 # the second\n");
  EXPECT_EQ(of_line("mpiexec -f HOSTFILE -n 4 ./a.out", hostfile).hosts.size(), 2u);
  EXPECT_EQ(of_line("mpiexec -hosts aa,bb -ppn 2 -n 4 ./a.out").np, 4);
  EXPECT_THAT(of_line("mpiexec -n 4 -genv OMP_NUM_THREADS 2 -l ./a.out").variables,
              ElementsAre(ForwardedVariable{"OMP_NUM_THREADS", "2"}));
  EXPECT_THAT(of_line("mpiexec -iface eth0 -n 2 -genvlist PATH,HOME ./a.out").variables, SizeIs(2));
}

TEST(RealLines, OfTorchrunsUsers) {
  EXPECT_EQ(of_line("torchrun --standalone --nproc-per-node=4 train.py --arg1").np, 4);
  const LaunchOptions two = of_line(
      "torchrun --nnodes=2 --nproc_per_node=4 --master_addr net-g14 --master_port 6666 "
      "--node_rank=1 main.py");
  EXPECT_EQ(two.np, 8);
  EXPECT_EQ(two.node_rank, 1);
  EXPECT_EQ(to_url(two.rendezvous.value()), "tcp://net-g14:6666");
  const LaunchOptions c10d = of_line(
      "torchrun --nnodes=2 --nproc_per_node=8 --rdzv_id=100 --rdzv_backend=c10d "
      "--rdzv_endpoint=node1.example.com:29400 llfs_train.py");
  EXPECT_EQ(to_url(c10d.rendezvous.value()), "tcp://node1.example.com:29400");
  EXPECT_EQ(c10d.node_rank, std::nullopt);
  EXPECT_THAT(c10d.notices, IsEmpty());
  EXPECT_EQ(of_line("torchrun --nnodes=1 --nproc_per_node=4 --rdzv_id=1 --rdzv_backend=c10d "
                    "--rdzv_endpoint=localhost train.py")
                .rendezvous,
            std::nullopt);
  EXPECT_EQ(of_line("torchrun --rdzv_backend c10d --rdzv_endpoint localhost:0 --nproc_per_node=3 "
                    "train.py -np 9")
                .np,
            3);
  EXPECT_THAT(of_line("torchrun --nnodes=2 --nproc-per-node=2 --max-restarts=3 --rdzv-id=7 "
                      "--rdzv-backend=c10d --rdzv-endpoint=host:29400 train.py")
                  .notices,
              SizeIs(1));
  EXPECT_THAT(of_line("torchrun --nproc_per_node 2 --master_addr 127.0.0.1 --master_port 5678 "
                      "--nnodes 1 --node_rank 0 -- train.py --epochs 3")
                  .program,
              ElementsAre("train.py", "--epochs", "3"));
}

TEST(RealLines, WhatHoraCannotDoIsRefusedWithWhatToUse) {
  const auto refusal = [](std::string_view line) {
    auto words = split_words(line).value();
    words.erase(words.begin());
    return test::refusal(words);
  };
  using testing::AllOf;
  using testing::HasSubstr;
  using testing::StartsWith;
  EXPECT_THAT(refusal("horovodrun -np 8 --min-np 4 --max-np 12 --host-discovery-script "
                      "discover_hosts.sh python train.py"),
              AllOf(StartsWith("--min-np: not supported"), HasSubstr("-np")));
  EXPECT_THAT(refusal("horovodrun -np 8 --host-discovery-script discover_hosts.sh python train.py"),
              AllOf(StartsWith("--host-discovery-script: not supported"), HasSubstr("-H")));
  EXPECT_THAT(refusal("torchrun --nnodes=1:3 --nproc_per_node=2 --rdzv_endpoint=ib1:8880 train.py"),
              AllOf(StartsWith("--nnodes \"1:3\""), HasSubstr("does not grow or shrink")));
  EXPECT_THAT(refusal("torchrun --nproc-per-node=gpu train.py"), HasSubstr("write the number"));
  EXPECT_THAT(refusal("torchrun --nproc-per-node=2 -m package.train"),
              HasSubstr("python -m MODULE"));
  EXPECT_THAT(refusal("mpirun -np 2 -H localhost:1,shr@54.244.60.228:1 python train.py"),
              HasSubstr("shr@54.244.60.228"));
  EXPECT_THAT(refusal("mpirun -np 4 --rankfile r.txt ./a.out"), HasSubstr("--mpi-args"));
}

}  // namespace
}  // namespace hora::launch

// A user's program with MPI of its own: hora on half of its ranks.
#include <hora/mpi.h>

int main(int argc, char** argv) {
  int level = 0;
  int rank = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  hora::init(half, {.engine_thread = false}).shutdown();
  MPI_Comm_free(&half);
  MPI_Finalize();
}

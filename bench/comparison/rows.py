"""The rows of bench/compare: what is measured, by whom, and the ratio that Lockstep is to reach against each rival."""
from dataclasses import dataclass, field

MLP, MLP_LARGE, MLP_SMALL = "784,1024,1024,10", "4096,4096,4096,4096,4096", "64,64,10"
RETAINING = {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0"}


@dataclass
class Contestant:
    """A side of a comparison: the ways to run it, of which the fastest counts.

    `program` is one of lockstep, lockstep_workers, parameter_servers, parameter_server_tasks, ps_lite, by_hand, run_overhead,
    input_pipeline, torch, tf, jax; a variant is a list of further arguments.
    """
    name: str
    program: str
    arguments: list
    ranks: int = 1               # processes, each told its --rank
    variants: list = field(default_factory=lambda: [[]])
    allocators: bool = False     # try the system's allocator and a retaining one
    sum_of_ranks: bool = False   # the ranks' rates add up: they do not wait for each other
    checked: bool = False        # begins with Lockstep's weights and data, and must compute the same
    goal: float = None           # Lockstep's rate over its rate, at least
    memory_goal: float = None    # Lockstep's peak memory over its, at most
    share_goal: float = None     # of Lockstep itself: the share of the machine's bandwidth, at least
    optional: bool = False       # left out by --quick
    environment: dict = field(default_factory=dict)
    network: str = None          # ranks are on hosts, each of which sends at most so fast: "1gbit"
    ranks_of_host: int = 1       # where there is a network


@dataclass
class Row:
    key: str
    title: str
    contestants: list            # the first one is Lockstep's
    quick: bool = False
    dump: bool = False           # the first contestant writes what the others check against


def devices(lanes):
    return ["--devices", ",".join(f"cpu:{lane}" for lane in range(lanes))]


def lockstep(lanes, *arguments, name="Lockstep", share_goal=None):
    """With a goal for the share of the machine's bandwidth, which is then measured beside it."""
    calibration = [] if share_goal else ["--no-calibration"]
    return Contestant(name, "lockstep", ["bench", *arguments, *calibration, *devices(lanes)], share_goal=share_goal)


def all_reduce(key, title, size, lanes, gloo, mpi, share=None, quick=False):
    return Row(key, title, [
        lockstep(lanes, "all-reduce", "--sizes", str(size), share_goal=share),
        Contestant("PyTorch, Gloo", "torch_collectives", ["all-reduce", "--bytes", str(size)], ranks=lanes, goal=gloo),
        Contestant("Open MPI", "by_hand", ["all-reduce", "--bytes", str(size)], ranks=lanes, goal=mpi),
        Contestant("UCX, an exchange without adding", "ucx", [str(size)], ranks=2),
    ], quick)


def step(key, title, lanes, shapes, ddp=3.5, by_hand=6, share=None, quick=False):
    """`shapes` are flags that all three programs understand."""
    ours = ["--shapes", shapes] if shapes[0].isdigit() else ["--model", shapes]
    return Row(key, title, [
        lockstep(lanes, "step", *ours, share_goal=share),
        Contestant("PyTorch, Gloo, fused AdamW", "torch_collectives", ["step", *ours], ranks=lanes, allocators=True,
                   variants=[["--bucket-mb", "25"], ["--bucket-mb", "5"], ["--bucket-mb", "100"]], goal=ddp),
        Contestant("C++ by hand: Open MPI, torch::optim", "by_hand", ["step", *ours], ranks=lanes, goal=by_hand),
    ], quick)


def train(key, title, lanes, model, batch, goals, quick=False):
    """`goals`: by rival; TensorFlow's is that of 10 steps a call too, unless tf10 is given."""
    mlp = "mlp:" in model
    ours = ["--model", "mlp", "--widths", model[4:]] if mlp else ["--model", model]
    theirs = ["--model", model, "--batch", str(batch), "--world", str(lanes)]
    contestants = [
        lockstep(lanes, "train", *ours, "--batch", str(batch)),
        Contestant("PyTorch DDP, Gloo", "torch_train", ["ddp", *theirs], ranks=lanes, allocators=True, checked=True,
                   variants=[["--bucket-mb", "25"], ["--bucket-mb", "5"], ["--bucket-mb", "100"]], goal=goals.get("ddp")),
        Contestant("PyTorch, one process, no replicas", "torch_train", ["one", *theirs], allocators=True, goal=goals.get("one"),
                   memory_goal=goals.get("one_memory"), checked=model != "resnet18"),  # its batch normalisation sees the whole batch
        Contestant("PyTorch, copies that do not wait", "torch_train", ["solo", *theirs], ranks=lanes, allocators=True,
                   sum_of_ranks=True, goal=goals.get("solo"), optional="solo" not in goals),
        Contestant("C++ by hand: Open MPI, torch::optim", "by_hand", ["train", *ours, "--batch", str(batch)], ranks=lanes,
                   allocators=True, checked=True, goal=goals.get("by_hand")),
    ]
    if mlp:
        contestants += [
            Contestant("TensorFlow MirroredStrategy, 1 step a call", "tf", theirs, variants=[[], ["--xla"]], goal=goals.get("tf")),
            Contestant("TensorFlow MirroredStrategy, 10 steps a call", "tf", [*theirs, "--inside", "10"],
                       variants=[[], ["--xla"]], goal=goals.get("tf10", goals.get("tf")), optional=True),
            Contestant("JAX, no replicas, 1 step a call", "jax", theirs, allocators=True, goal=goals.get("jax")),
        ]
    return Row(key, title, contestants, quick, dump=True)


def workers(key, title, many, model, batch, ddp, quick=False):
    """Workers of this host with one core each, against as many processes of DDP and against lanes of one process."""
    mlp = "mlp:" in model
    ours = ["train", *(["--model", "mlp", "--widths", model[4:]] if mlp else ["--model", model]), "--batch", str(batch)]
    theirs = ["--model", model, "--batch", str(batch), "--world", str(many)]
    return Row(key, f"{title}: {many} workers of one host", [
        Contestant(f"Lockstep, {many} workers", "lockstep_workers",
                   ["bench", *ours, "--strategy", "multi-worker", "--replicas", str(many), "--no-calibration", *devices(1)], ranks=many),
        Contestant("PyTorch DDP, Gloo", "torch_train", ["ddp", *theirs], ranks=many, allocators=True,
                   variants=[["--bucket-mb", "25"], ["--bucket-mb", "5"], ["--bucket-mb", "100"]], goal=ddp),
        Contestant("Lockstep, one process", "lockstep", ["bench", *ours, "--no-calibration", *devices(many)], goal=0.9),
    ], quick)


HOSTS = [  # and the goals at 10 and at 1 Gbit/s
    ("hosts-mlp", "training: MLP 784-1024-1024-10, batch 32", "mlp:" + MLP, 32, 1.8, 5),
    ("hosts-mlp-large", "training: MLP of 4 x 4096x4096, batch 8", "mlp:" + MLP_LARGE, 8, 5, 12),
    ("hosts-resnet18", "training: resnet18, batch 16", "resnet18", 16, 1.15, 1.3),
    ("hosts-gpt", "training: gpt, context 128, batch 8", "gpt", 8, 1.05, 1.3),
]


def hosts(key, title, model, batch, rate, ddp):
    """Two hosts with one core each, which are network namespaces; needs root. What one replica takes without a network
    shows how much of a step the network adds."""
    ours = ["train", *(["--model", "mlp", "--widths", model[4:]] if "mlp:" in model else ["--model", model]), "--batch", str(batch)]
    return Row(f"{key}-{rate}", f"{title}: 2 hosts of one core, {rate[:-4]} Gbit/s", [
        Contestant("Lockstep, tcp", "lockstep",
                   ["bench", *ours, "--strategy", "multi-worker", "--replicas", "2", "--no-calibration", *devices(1)], ranks=2,
                   network=rate),
        Contestant("PyTorch DDP, Gloo", "torch_train", ["ddp", "--model", model, "--batch", str(batch), "--world", "2"], ranks=2,
                   variants=[["--bucket-mb", "25"], ["--bucket-mb", "5"], ["--bucket-mb", "100"]], goal=ddp, network=rate),
        Contestant("Lockstep, one replica, no network", "lockstep", ["bench", *ours, "--no-calibration", *devices(1)]),
    ])


LOOPBACK_BY_MPI = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "lo"}
LOOPBACK_BY_UCX = {"OMPI_MCA_pml": "ucx", "OMPI_MCA_osc": "ucx", "OMPI_MCA_opal_common_ucx_tls": "any",
                   "OMPI_MCA_opal_common_ucx_devices": "any", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}


def wire(key, title, size):
    """Two processes send so much to each other over the loopback interface."""
    def ours(engine, **goals):
        return Contestant(f"Lockstep, {engine}", "lockstep",
                          ["bench", "wire", "--engine", engine, "--sizes", str(size)], **goals)

    exchange = ["exchange", "--bytes", str(size)]
    return [
        Row(key, f"{title} over loopback", [
            ours("tcp"),
            Contestant("Open MPI, its own TCP", "by_hand", exchange, ranks=2, goal=1, environment=LOOPBACK_BY_MPI),
            Contestant("Open MPI, UCX over TCP", "by_hand", exchange, ranks=2, goal=1, environment=LOOPBACK_BY_UCX),
            Contestant("UCX over TCP, one way at a time", "ucx", [str(size), "tcp,self"], ranks=2),
        ]),
        Row(f"{key}-tls", f"{title} over loopback, encrypted", [ours("tls"), ours("tcp", goal=0.4)]),
    ]


PAIRS = [
    ("pairs-mlp", "training: MLP 784-1024-1024-10, batch 32", "mlp:" + MLP, 32),
    ("pairs-mlp-large", "training: MLP of 4 x 4096x4096, batch 8", "mlp:" + MLP_LARGE, 8),
    ("pairs-resnet18", "training: resnet18, batch 16", "resnet18", 16),
    ("pairs-gpt", "training: gpt, context 128, batch 8", "gpt", 8),
]


def pairs(key, title, model, batch, rate):
    """Two hosts of one core and two workers each: whether the workers of a host should share its update."""
    ours = ["train", *(["--model", "mlp", "--widths", model[4:]] if "mlp:" in model else ["--model", model]), "--batch", str(batch),
            "--strategy", "multi-worker", "--replicas", "4", "--no-calibration", *devices(1)]

    def lockstep(name, **environment):
        return Contestant(name, "lockstep", ["bench", *ours], ranks=4, network=rate, ranks_of_host=2, environment=environment)
    return Row(f"{key}-{rate}", f"{title}: 2 hosts of two workers, {rate[:-4]} Gbit/s", [
        lockstep("Lockstep, tcp"),
        lockstep("Lockstep, each worker updates all", LOCKSTEP_HOST_MEMORY="off"),
        Contestant("PyTorch DDP, Gloo", "torch_train", ["ddp", "--model", model, "--batch", str(batch), "--world", "4"], ranks=4,
                   variants=[["--bucket-mb", "25"], ["--bucket-mb", "5"], ["--bucket-mb", "100"]], network=rate, ranks_of_host=2),
    ])


def inputs(key, title, work, lanes, batch, alone, loaders=None, quick=False):
    """Reading alone, on as many threads or processes as lanes. `alone`: LibTorch's DataLoader, or a library by itself."""
    flags = ["--threads", str(lanes), "--batch", str(batch)]
    contestants = [
        Contestant("Lockstep", "input_pipeline", ["lockstep", work, *flags], checked=True),
        *(Contestant(name, "input_pipeline", [side, work, *flags], goal=goal, checked=True) for name, side, goal in alone),
    ]
    if work != "loops":  # which Python has none of
        contestants += [
            Contestant("PyTorch's DataLoader, Python", "torch_input", ["dataloader", work, *flags], goal=loaders, checked=True),
            Contestant("tf.data", "tf_input", [work, *flags], variants=[[], ["--gather"]] if work == "batches" else [[]], checked=True),
            Contestant("Grain", "torch_input", ["grain", work, *flags], variants=[[], ["--processes"]], checked=True),
        ]
    if work == "batches":
        contestants.append(Contestant("PyTorch's DataLoader, Python, __getitems__", "torch_input", ["dataloader", work, "--getitems", *flags]))
    return Row(key, f"reading: {title}", contestants, quick, dump=work == "images")


def more_replicas(key, title, lanes, model, batch, goal, memory=None):
    """Four times as many replicas as lanes, against as many as lanes."""
    many = 4 * lanes
    ours = ["train", *model, "--batch", str(batch), "--replicas"]
    theirs = model[1] if model[1] != "mlp" else "mlp:" + model[3]
    return Row(key, f"{title}, batch {batch}: {many} replicas on {lanes} lanes", [
        lockstep(lanes, *ours, str(many), name=f"Lockstep, {many} replicas"),
        Contestant(f"Lockstep, {lanes} replicas", "lockstep",
                   ["bench", *ours, str(lanes), "--no-calibration", *devices(lanes)], goal=goal, memory_goal=memory and 1.8),
        Contestant(f"PyTorch DDP, {many} processes", "torch_train", ["ddp", "--model", theirs, "--batch", str(batch), "--world", str(many)],
                   ranks=many, memory_goal=memory and 0.25, optional=True),
    ])


def parameter_servers(key, title, work, batch, tf=None, ps_lite=True):
    """A chief, two workers and a server on the same cores: processes, and for Lockstep threads as well. The rate is that
    of steps."""
    flags = [work, *(["--batch", str(batch)] if batch else [])]
    contestants = [
        Contestant("Lockstep, processes, tcp", "parameter_server_tasks", [*flags, "--engine", "tcp"], ranks=2),
        Contestant("Lockstep, processes, tls", "parameter_server_tasks", [*flags, "--engine", "tls"], ranks=2),
        Contestant("Lockstep, threads", "parameter_servers", flags),
        Contestant("TensorFlow ParameterServerStrategy, 1 step a call", "tf_parameter_servers", flags,
                   variants=[[], ["--threads", "1"]], goal=tf),
    ]
    if work != "empty":
        contestants.append(Contestant("TensorFlow ParameterServerStrategy, 10 steps a call", "tf_parameter_servers",
                                      [*flags, "--inside", "10"], variants=[[], ["--threads", "1"]], optional=True))
    if ps_lite:
        contestants.append(Contestant("ps-lite and LibTorch, by hand", "ps_lite", flags, ranks=2, sum_of_ranks=True))
    return Row(f"parameter-server-{key}", f"parameter servers, 2 workers: {title}", contestants)


def served_rows(known):
    """One worker and one server: a pull and a push by themselves, one after the other."""
    flags = ["rows", "--known", str(known)]
    return Row(f"parameter-server-rows-{known}", f"parameter servers: pull and push of 1,000 rows of 32, of {known:,}", [
        Contestant("Lockstep, tcp", "parameter_server_tasks", flags),
        Contestant("Lockstep, threads", "parameter_servers", flags),
        Contestant("ps-lite", "ps_lite", flags),
    ])


def rows(lanes):
    """Lockstep is to reach these ratios on two lanes with LibTorch 2.15 on both sides."""
    medium = {"ddp": 3.6, "tf": 4.5, "one": 1.4}
    large = {"ddp": 6, "tf": 9, "one": 2.5, "jax": 1.8, "one_memory": 1}
    small = {"ddp": 25, "tf10": 6, "one": 3.5, "jax": 1}
    mlp = ["--model", "mlp", "--widths", MLP]
    return [
        all_reduce("all-reduce-small", "all-reduce of 4 KiB", 4096, lanes, 100, 1, quick=True),
        all_reduce("all-reduce-large", "all-reduce of 64 MiB", 64 << 20, lanes, 8, 3, share=0.85),
        step("step-resnet18", "reduce and step: parameters of resnet18", lanes, "resnet18", share=0.85),
        step("step-gpt", "reduce and step: parameters of gpt", lanes, "gpt", share=0.85, quick=True),
        step("step-large", "reduce and step: 4 x 4096x4096", lanes, "4096x4096*4", share=0.85),
        step("step-many", "reduce and step: 10,000 tensors of 1 KiB", lanes, "256*10000", ddp=10, by_hand=10),
        train("mlp", "training: MLP 784-1024-1024-10, batch 32", lanes, "mlp:" + MLP, 32, medium, quick=True),
        train("mlp-large", "training: MLP of 4 x 4096x4096, batch 8", lanes, "mlp:" + MLP_LARGE, 8, large),
        *(train(f"mlp-large-{batch}", f"training: MLP of 4 x 4096x4096, batch {batch}", lanes, "mlp:" + MLP_LARGE, batch, {})
          for batch in (16, 64, 128)),
        train("mlp-small", "training: MLP 64-64-10, batch 16", lanes, "mlp:" + MLP_SMALL, 16, small, quick=True),
        train("resnet18", "training: resnet18, batch 16", lanes, "resnet18", 16, {"solo": 1, "one": 0.97}),
        train("gpt", "training: gpt, context 128, batch 8", lanes, "gpt", 8, {"solo": 1, "one": 1}),
        workers("workers-mlp", "training: MLP 784-1024-1024-10, batch 32", lanes, "mlp:" + MLP, 32, 3),
        workers("workers-mlp-large", "training: MLP of 4 x 4096x4096, batch 8", lanes, "mlp:" + MLP_LARGE, 8, 5),
        workers("workers-resnet18", "training: resnet18, batch 16", lanes, "resnet18", 16, 1.1),
        workers("workers-gpt", "training: gpt, context 128, batch 8", lanes, "gpt", 8, 1.1),
        *(hosts(*model, rate, goal) for *model, fast, slow in HOSTS for rate, goal in (("10gbit", fast), ("1gbit", slow))),
        *(pairs(*model, rate) for model in PAIRS for rate in ("10gbit", "1gbit")),
        more_replicas("replicas-mlp", "training: MLP 784-1024-1024-10", lanes, mlp, 32, 1.1),
        more_replicas("replicas-resnet18", "training: resnet18", lanes, ["--model", "resnet18"], 16, 0.98),
        more_replicas("replicas-gpt", "training: gpt, context 128", lanes, ["--model", "gpt"], 8, 0.98, memory=True),
        *wire("wire-small", "4 KiB to each other", 4096),
        *wire("wire-large", "64 MiB to each other", 64 << 20),
        inputs("input-batches", "28x28 bytes, a function of a batch", "batches", lanes, 128,
               [("LibTorch's DataLoader", "libtorch", 3), ("LibTorch's DataLoader, batches by hand", "libtorch-batches", None)], 3),
        inputs("input-samples", "28x28 bytes, a function of a sample", "samples", lanes, 128, [("LibTorch's DataLoader", "libtorch", 3)], 3),
        inputs("input-loops", "28x28 bytes, a loop over a sample", "loops", lanes, 128, [("LibTorch's DataLoader", "libtorch", 3)]),
        inputs("input-images", "JPEG files, 224x224 from the middle", "images", lanes, 32, [("libjpeg-turbo alone", "libjpeg", 1)]),
        parameter_servers("dense", "MLP 784-1024-1024-10, batch 32", "dense", 32, tf=5),
        parameter_servers("recommender", "two tables of 1,000,000 x 32, batch 256, two dense layers", "recommender", 256, tf=10),
        parameter_servers("empty", "steps without a pull or a push", "empty", None, ps_lite=False),
        served_rows(10_000),
        served_rows(100_000),
        Row("run", "one replica through run, cnn, batch 64", [
            Contestant("Lockstep, through run", "run_overhead", ["through run"]),
            Contestant("LibTorch, the bare loop", "run_overhead", ["by hand"], goal=1),
        ]),
    ]

"""The options of commands that train, with their help texts: those of one name mean the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino.named import (
    ACCOUNTANTS,
    ALGORITHMS,
    DATA_SETS,
    ENGINES,
    FEATURES,
    LOCAL_RULES,
    METHODS,
    MODELS,
    PARTICIPATIONS,
    PARTITIONS,
    SAMPLINGS,
    SERVERS,
)

Data = Annotated[str, typer.Argument(metavar="DATA", help=f"{DATA_SETS.help()}.")]
Model = Annotated[str | None, typer.Option(help=f"{MODELS.help()}. By default chosen for the data.")]
Features = Annotated[
    str | None,
    typer.Option(
        help=f"Frozen public features in front of the model: {FEATURES.help()}. Computed once. By default scattering "
        "for named sets of images, where no --model is named."
    ),
]
ImageSize = Annotated[
    int | None,
    typer.Option(help="Pixels of a side, for a folder of images: by default 32, whatever they have."),
]
Grey = Annotated[bool, typer.Option("--grey", help="Images of a folder in grey; by default in colours.")]
Accountant = Annotated[str, typer.Option(help=f"{ACCOUNTANTS.help()}.")]
Classes = Annotated[int | None, typer.Option(help="Number of classes of an .npz, if it is public.")]
Secure = Annotated[
    bool, typer.Option("--secure", help="Refuse seeds: randomness from the operating system alone.")
]
Out = Annotated[Path | None, typer.Option(help="Where the run goes; default runs/DATA-TIME.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the interrupted run in --out.")]
KeepCheckpoint = Annotated[
    bool,
    typer.Option("--keep-checkpoint", help="Keep checkpoint/ (it holds the noise key: keep it secret)."),
]
Ledger = Annotated[
    Path | None,
    typer.Option(help="Count the run in this ledger. By default the one that SORDINO_LEDGER names."),
]
DataName = Annotated[
    str | None,
    typer.Option(help="What the owner calls the data: under this name a ledger counts what is spent on it."),
]
Rationale = Annotated[
    str | None, typer.Option(help="Why this epsilon, delta and unit: goes into the certificate.")
]
SigningKey = Annotated[
    Path | None,
    typer.Option(
        help="Sign the certificate with this Ed25519 key (PEM). By default the one that SORDINO_SIGNING_KEY names."
    ),
]
TensorBoard = Annotated[
    Path | None,
    typer.Option(
        "--tensorboard",
        metavar="DIR",
        help="Show the history in TensorBoard while it grows, as DIR/RUN (an extra).",
    ),
]
MLflow = Annotated[
    str | None,
    typer.Option(
        "--mlflow",
        metavar="URI|NAME",
        help="The same in MLflow: a server, a folder, or an experiment (an extra).",
    ),
]
PrivateBounds = Annotated[
    float | None,
    typer.Option(
        help="The part of --epsilon for bounds and values that a table's schema lacks, found with noise."
    ),
]
MetricEpsilon = Annotated[
    float | None,
    typer.Option(
        help="The part of --epsilon for metrics: held-out rows are counted once, with noise, and covered."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on stdout.")]
Standardise = Annotated[
    str | None,
    typer.Option(
        metavar="none|private|public:MEAN,STD",
        help="Offset and deviation of every input: none, estimated for a part of --epsilon, or said. By default "
        "private for auto, adadp, oso and dp-dog, where inputs are numbers.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method, e.g. learning_rate=0.5."),
]
Epsilon = Annotated[float | None, typer.Option(help="The budget, above 0. No default.")]
Delta = Annotated[float | None, typer.Option(help="Strictly between 0 and 1; below 1/n. No default.")]
NoiseMultiplier = Annotated[
    float | None, typer.Option(help="Instead of --epsilon: noise over threshold. 0 means none, epsilon inf.")
]
Seed = Annotated[int | None, typer.Option(help="For experiments only: a known seed voids the guarantee.")]
Evaluations = Annotated[int, typer.Option(help="How often the test rows are looked at.")]
Device = Annotated[
    str | None, typer.Option(help="Where to train, as torch calls it: cpu, cuda. Only the CPU is tested.")
]
Shares = Annotated[
    int | None,
    typer.Option(help="Into how many parts a batch is cut, for torchrun; default: its number of processes."),
]

# Of tables.
Target = Annotated[str | None, typer.Option(help="The column of a table that is predicted.")]
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema", help="What is public about a table; default NAME.schema.toml or schema.toml beside it."
    ),
]
TestFile = Annotated[Path | None, typer.Option("--test", help="Held-out rows of a table, in a file like it.")]
HoldoutShare = Annotated[
    float | None, typer.Option("--holdout", help="Hold out this share of a table's rows, or of its users.")
]
UnitOfPrivacy = Annotated[
    str, typer.Option("--unit", help="What is protected: example (a row), or user (all that somebody has).")
]
UserColumn = Annotated[
    str | None, typer.Option(help="The column that says whose a row is, with --unit user.")
]
RowsPerUser = Annotated[
    int | None, typer.Option(help="Rows of a user that count, the first ones; by default 16.")
]

# Of central training.
Method = Annotated[str, typer.Option(help=f"{METHODS.help()}.")]
Epochs = Annotated[
    float | None, typer.Option(help="Passes over the data (expected); by default from the number of rows.")
]
BatchSize = Annotated[
    int | None, typer.Option(help="Expected batch size; by default from the number of rows.")
]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="Time that the training may take, which chooses epochs and batch size: at least one pass, at most 4 times "
        "the default ones."
    ),
]
Sampling = Annotated[str | None, typer.Option(help=f"{SAMPLINGS.help()}.")]
ShowLoss = Annotated[
    bool, typer.Option("--show-unprotected", help="Show the training loss, which no guarantee covers.")
]

# Of federations.
Algorithm = Annotated[
    str | None,
    typer.Option(help=f"{ALGORITHMS.help()}. By default adabest; under privacy or with a --server fedavg."),
]
Clients = Annotated[
    int | None, typer.Option(help="That train; by default 100, or all there are in the data.")
]
PerRound = Annotated[
    int | None,
    typer.Option(help="Clients in a round; under privacy expected, or exactly. By default 10, or all."),
]
Rounds = Annotated[int, typer.Option(help="How many.")]
Partition = Annotated[str | None, typer.Option(help=f"Who has which rows: {PARTITIONS.help()}.")]
Holdout = Annotated[int, typer.Option(help="Further clients that never train, to tune by.")]
Participation = Annotated[str | None, typer.Option(help=f"Who comes when: {PARTICIPATIONS.help()}.")]
Local = Annotated[str, typer.Option(help=f"How clients step: {LOCAL_RULES.help()}.")]
LocalEpochs = Annotated[int, typer.Option(help="Passes over a client's rows in a round.")]
LocalBatch = Annotated[int, typer.Option(help="Of a local step.")]
MaxExamples = Annotated[int | None, typer.Option(help="Rows a client uses in a round, at most.")]
ShortBatches = Annotated[
    bool, typer.Option("--short-batches", help="Leave the last batch short; else it is topped up.")
]
FederatedSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="learning_rate, decay (of it, per round), keep_rates, beta, mu, tol, server_rate, momentum, "
        "threshold, target_quantile, restart_every, noise (as in noise=banded:8), ...",
    ),
]
Server = Annotated[str | None, typer.Option(help=f"The server's step: {SERVERS.help()}.")]
UserEpsilon = Annotated[float | None, typer.Option(help="User-level privacy: the budget. No default.")]
UserDelta = Annotated[float | None, typer.Option(help="Should be below 1/clients. No default.")]
DropOut = Annotated[float, typer.Option(help="Probability that a client asked does not deliver.")]
Slowness = Annotated[float, typer.Option(help="Lognormal spread of how long clients take.")]
Deadline = Annotated[
    float | None, typer.Option(help="In times of an average client's work; later ones are left out.")
]
OverSelection = Annotated[
    float, typer.Option(help="Ask that many times the clients wanted, and take the first.")
]
Workers = Annotated[
    int | None, typer.Option(help="Processes that share the local work; by default as many as pay.")
]
Patience = Annotated[
    float | None,
    typer.Option(help="Seconds a client may take; without it a round waits (600 across a network)."),
]
Engine = Annotated[
    str, typer.Option(help=f"{ENGINES.help()}; or flower, for clients across a network (--superlink).")
]
SuperLink = Annotated[
    str | None,
    typer.Option(
        help="With --engine flower: HOST:PORT of a SuperLink (--isolation process). DATA is then a schema, or what is "
        "measured on."
    ),
]
Nodes = Annotated[int | None, typer.Option(help="With --engine flower: begin when so many nodes are there.")]
RootCertificates = Annotated[
    Path | None, typer.Option(help="PEM file of the authority that vouches for the SuperLink.")
]
SuperLinkSecret = Annotated[
    Path | None,
    typer.Option(help="The SuperLink's --superexec-auth-secret-file, which keeps other servers out."),
]
NodeKeys = Annotated[
    Path | None,
    typer.Option(
        help="Public keys of the nodes that may take part: a file of them, or a folder of .pub files."
    ),
]
WithoutTls = Annotated[
    bool, typer.Option("--without-tls", help="Let everything cross the network in the clear.")
]
WithoutNodeAuthentication = Annotated[
    bool,
    typer.Option(
        "--without-node-authentication",
        help="Let in whoever reaches the SuperLink, as a node or as the server.",
    ),
]
Store = Annotated[str, typer.Option(help="What clients keep lies in memory or in a file.")]
ShowClients = Annotated[
    bool,
    typer.Option(
        "--show-unprotected", help="Under privacy, write down sizes, labels and rates of clients too."
    ),
]

"""Everything that has a name on the command line: one line each.

Adding an optimiser, a policy, an algorithm, a data set or a recipe is its own file and one line here. Help texts, error
messages, the tables of the documents and the contract tests follow from it. Nothing is loaded before it is asked for,
so that `sordino --help` needs neither torch nor the thing.

``python -m sordino.named`` prints the tables as Markdown, or those that are named.
"""

from __future__ import annotations

import sys

from sordino.registry import Entry, Registry

# The order of a table is that of help texts and documents.

CLIPS = Registry(
    "clipping policy",
    {
        "fixed": Entry("clipping:Fixed", "one threshold that stays", takes="threshold", example="1.0"),
        "normalised": Entry("clipping:Normalised", "every gradient divided by its norm: no threshold"),
        "online": Entry(
            "clipping:Online", "a threshold that descends its own derivative (OSO)", takes="threshold"
        ),
        "per-layer": Entry(
            "clipping:PerLayer", "a threshold for each layer", takes="thresholds", example="1.0"
        ),
        "quantile": Entry(
            "clipping:Quantile", "a threshold that follows a quantile of the norms", takes="target_quantile"
        ),
        "unclipped": Entry("clipping:Unclipped", "no clipping, without privacy"),
    },
)

NOISES = Registry(
    "noise mechanism",
    {
        "banded": Entry("noise:Banded", "noise that the next steps take back in part", takes="bands"),
        "buffered": Entry(
            "noise:Buffered", "noise that all later steps take back, in the memory of a few", takes="buffers"
        ),
        "gaussian": Entry("noise:Gaussian", "fresh noise in each step"),
        "tree": Entry("noise:Tree", "the tree aggregation of DP-FTRL", takes="restart_every"),
    },
)

STEPS = Registry(
    "step rule",
    {
        "adam": Entry("steps:Adam", "Adam"),
        "adam-wosm": Entry(
            "steps:AdamWithoutSecondMoments", "Adam without second moments, scaled by the noise"
        ),
        "extrapolation": Entry("steps:Extrapolation", "a full step against two half steps (ADADP)"),
        "ftrl": Entry("steps:Ftrl", "follow the regularised leader", takes="momentum"),
        "sgd": Entry("steps:Sgd", "SGD, heavy ball", takes="momentum"),
    },
)

RATES = Registry(
    "rate controller",
    {
        "constant": Entry("rates:Constant", "one rate that stays", takes="learning_rate", example="0.1"),
        "distance": Entry("rates:DistanceOverGradients", "distance travelled over gradients (DoG)"),
        "hypergradient": Entry("rates:Hypergradient", "a rate that descends its own derivative (OSO)"),
        "scheduled": Entry(
            "rates:Scheduled", "along a line or a cosine to nothing", takes="learning_rate", example="0.1"
        ),
        "tolerance": Entry(
            "rates:Tolerance", "keeps the error of a step at a tolerance (ADADP)", takes="tol"
        ),
        "travel": Entry("rates:Travel", "D / (G sqrt(T)), G measured", takes="travel"),
    },
)

METHODS = Registry(
    "method",
    {
        "adadp": Entry("methods:adadp", "ADADP: the rate found by extrapolation, two batches a step"),
        "adam": Entry("methods:adam", "Adam without privacy", facts={"public": True}),
        "adam-wosm": Entry("methods:adam_wosm", "Adam without second moments"),
        "auto": Entry("methods:auto", "tunes itself: no rate, no threshold"),
        "composed": Entry("methods:method", "of parts, as in --set clip=quantile:0.8 --set noise=gaussian"),
        "dp-adam": Entry("methods:dp_adam", "Adam on private gradients"),
        "dp-dog": Entry("methods:dp_dog", "distance over gradients: no rate, no threshold"),
        "dp-ftrl": Entry("methods:dp_ftrl", "tree noise: no sampling needed"),
        "dp-sgd": Entry("methods:dp_sgd", "SGD on private gradients"),
        "oso": Entry("methods:oso", "OSO-DPSGD: rate and threshold optimised online"),
        "sgd": Entry("methods:sgd", "SGD without privacy", facts={"public": True}),
    },
    given=("name",),
    parts={"clip": CLIPS, "step": STEPS, "rate": RATES, "noise": NOISES},
)

SERVERS = Registry(
    "server",
    {
        "adam": Entry("steps:Adam", "Adam"),
        "ftrl": Entry("steps:Ftrl", "follow the regularised leader; as dp-ftrl with tree noise"),
        "ftrlm": Entry(
            "steps:Ftrl", "with momentum; as dp-ftrlm with tree noise", settings={"momentum": 0.9}
        ),
        "sgd": Entry("steps:Sgd", "SGD"),
        "sgdm": Entry("steps:Sgd", "with momentum", settings={"momentum": 0.9}),
    },
    prefix="dp-",
)

ALGORITHMS = Registry(
    "algorithm",
    {
        "adabest": Entry("federated.algorithms:AdaBest", "corrects what clients miss, and forgets"),
        "fedadam": Entry("federated.algorithms:FedAdam", "Adam on the server"),
        "fedavg": Entry("federated.algorithms:FedAvg", "averages, with any --server"),
        "feddyn": Entry("federated.algorithms:FedDyn", "a dynamic regulariser"),
        "fedprox": Entry("federated.algorithms:FedProx", "clients are drawn back to where they started"),
        "scaffold": Entry("federated.algorithms:Scaffold", "control variates"),
        "scaffold-m": Entry("federated.algorithms:ScaffoldM", "likewise, and clients send one vector"),
    },
    parts={"server": SERVERS},
)

LOCAL_RULES = Registry(
    "local rule",
    {
        "adadp": Entry("federated.local:LocalExtrapolation", "each client tunes its own rate"),
        "adam": Entry("federated.local:LocalAdam", "begun anew every round"),
        "sgd": Entry("federated.local:LocalSgd", "plain, or with momentum"),
    },
)

ENGINES = Registry(
    "engine",
    {
        "stacked": Entry("federated.engines.gradients:stacked", "layer by layer, all clients at once"),
        "mapped": Entry("federated.engines.gradients:mapped", "torch.func.vmap over clients"),
        "looped": Entry("federated.engines.gradients:looped", "one client after the other, any model"),
        "debug": Entry("federated.engines.gradients:looped", "another name for looped"),
    },
    also="auto, the fastest of them; or ray, the same by workers of Ray (an extra)",
    unknown="there is no {kind} {name!r}: use one of {names}",
    given=("model", "loss", "vector", "reuse"),
)

PARTITIONS = Registry(
    "partition",
    {
        "iid": Entry("data.partitions:Random", "random rows"),
        "dirichlet": Entry(
            "data.partitions:Dirichlet", "skewed labels, the more the smaller ALPHA", takes="alpha"
        ),
        "pathological": Entry(
            "data.partitions:Pathological", "by label, but for a share of RANDOM rows", takes="random"
        ),
        "natural": Entry("data.partitions:Natural", "the users in the data"),
    },
    also="iid or dirichlet with lognormal sizes, as in dirichlet:0.3,spread=0.3",
    unknown="there is no {kind} {name!r}: use {names}",
)

PARTICIPATIONS = Registry(
    "participation",
    {
        "fixed": Entry("data.sampling:WithoutReplacement.of_batch", "so many a round, the default"),
        "poisson": Entry("data.sampling:Poisson.of_batch", "each by chance, the default under privacy"),
        "shuffled": Entry(
            "data.sampling:Shuffled.of_batch", "in a random order, with tree noise", settings={"every": None}
        ),
        "in-order": Entry("data.sampling:FixedOrder.of_batch", "in the order of the data"),
        "separated": Entry(
            "data.sampling:Separated.of_batch",
            "a client sits out that many rounds",
            takes="separation",
            example="10",
        ),
    },
    given=("batch_size", "units", "assume_poisson", "every"),  # how a price is found is no setting
)

SAMPLINGS = Registry(
    "sampling",
    {
        "poisson": Entry("data.sampling:Poisson.of_batch", "each by chance, the default"),
        "shuffled": Entry(
            "data.sampling:Shuffled.of_batch", "priced without amplification, dp-ftrl's default"
        ),
        "fixed-order": Entry("data.sampling:FixedOrder.of_batch", "priced without amplification"),
        "shuffled-as-poisson": Entry(
            "data.sampling:Shuffled.of_batch",
            "priced as the papers do, which is no guarantee",
            settings={"assume_poisson": True},
            facts={"no guarantee": True},
        ),
    },
    given=("batch_size", "units", "assume_poisson", "every"),  # how a price is found is no setting
)

ACCOUNTANTS = Registry(
    "accountant",
    {
        "auto": Entry("privacy.accountants:by_the_tighter", "the tighter of rdp and pld"),
        "moments": Entry("privacy.accountants:by_moments", "as in 2016, integer orders"),
        "pld": Entry("privacy.accountants:by_pld", "privacy loss distributions"),
        "rdp": Entry("privacy.accountants:by_rdp", "Renyi DP"),
    },
    unknown="unknown {kind} {name!r}: choose one of {names}",
    given=("event", "delta", "conversion"),
)

STOPPINGS = Registry(
    "stopping",
    {
        "geometric": Entry("privacy.selection:geometric", "a coin after each run, as Liu and Talwar have it"),
        "logarithmic": Entry("privacy.selection:logarithmic", "often one run, at times many: the cheapest"),
        "negative-binomial": Entry(
            "privacy.selection:negative_binomial",
            "between and beyond these two, truncated",
            takes="shape",
            example="0.5",
        ),
        "poisson": Entry("privacy.selection:poisson", "closest to its mean; none at all is possible"),
    },
    given=("mean",),
)

MODELS = Registry(
    "model",
    {
        "linear": Entry("models:linear", "no hidden layer"),
        "mlp": Entry("models:mlp", "hidden layers, as in mlp:256,256", facts={"sizes": True}),
        "cnn": Entry("models:cnn", "for images"),
        "lstm": Entry("models:lstm", "for next words, as in lstm:96,670", facts={"sizes": True}),
    },
    also="MODULE:CALLABLE or path/to/file.py:CALLABLE",
    unknown="unknown {kind} {name!r}: use {names}",
    given=("input_shape", "classes", "sizes"),
)

# A fact about a set may be the model it gets if nobody names one; else it is an mlp, which takes rows of any shape.
# Another may be the features that stand in front of a model if nobody names either.
# Without features a small network; with nothing named at all, features in front of a linear model.
_OF_IMAGES = {"model": "cnn", "features": "scattering"}
_OF_PHOTOGRAPHS = {"model": "cnn", "features": "scattering,mirrored=true"}

DATA_SETS = Registry(
    "data set",
    {
        "adult": Entry("data.adult:load_adult", "income, US census of 1994", facts={"model": "mlp:64"}),
        "ag-news": Entry(
            "data.ag_news:load_ag_news",
            "four kinds of news",
            facts={"model": "mlp:128", "texts": "data.ag_news:load_texts"},
        ),
        "cifar10": Entry("data.cifar:load_cifar10", "ten kinds of things, 32x32", facts=_OF_PHOTOGRAPHS),
        "digits": Entry(
            "data.digits:load_digits",
            "handwritten, 8x8, bundled",
            facts={"model": "mlp:64", "bundled": True},
        ),
        "emnist-bymerge": Entry("data.emnist:BYMERGE.load", "letters and digits, 28x28", facts=_OF_IMAGES),
        "emnist-letters": Entry("data.emnist:LETTERS.load", "letters, 28x28", facts=_OF_IMAGES),
        "fashion-mnist": Entry("data.idx:FASHION_MNIST.load", "clothing, 28x28", facts=_OF_IMAGES),
        "mnist": Entry("data.idx:MNIST.load", "handwritten digits, 28x28", facts=_OF_IMAGES),
        "shakespeare": Entry(
            "data.shakespeare:load_shakespeare", "next words, by roles", facts={"model": "lstm"}
        ),
    },
    also="a path to a .csv, .parquet or .npz file, or a folder of class folders with images",
    unknown="unknown {kind} {name!r}: there are {names}",
    given=("folders",),
)

INPUTS = Registry(
    "kind of data",
    {
        "arrays": Entry("data.npz:Arrays", "arrays in one .npz file"),
        "featured": Entry("features.featured:Featured", "any of them, with frozen features in front"),
        "images": Entry("data.images:Images", "images in class folders"),
        "named": Entry("data.named:Named", "a named public set"),
        "table": Entry("data.table:Table", "rows of a table, by a schema"),
    },
)

FEATURES = Registry(
    "kind of features",
    {
        "none": Entry(
            "features.frozen:nothing", "the rows as they are, the default but for named sets of images"
        ),
        "scattering": Entry("features.scattering:Scattering", "wavelets of images, nothing learnt"),
        "sentence-transformers": Entry(
            "features.text:Sentences",
            "texts by a public model, a name or a path",
            takes="model",
            example="all-MiniLM-L6-v2",
        ),
    },
    also="MODULE:CALLABLE or path/to/file.py:CALLABLE",
    unknown="unknown {kind} {name!r}: use {names}",
)

RECIPES = Registry(
    "recipe",
    {
        "adabest-cifar": Entry(
            "recipes.adabest:cifar",
            "AdaBest: against FedAvg, SCAFFOLD and FedDyn with a CNN on CIFAR-10 (table 2)",
        ),
        "adabest-cost": Entry(
            "recipes.adabest_cost:compare",
            "AdaBest: cost tables checked by counting vector operations and bytes (supplement, tables 4 and 5)",
        ),
        "adabest-emnist": Entry(
            "recipes.adabest:emnist",
            "AdaBest: against FedAvg, SCAFFOLD and FedDyn under label skew on EMNIST-L (table 2)",
        ),
        "adabest-stability": Entry(
            "recipes.adabest_stability:stability",
            "AdaBest: growing cloud models, Theorem 1, beta and mu (figures 1 and 4 to 7)",
        ),
        "adadp-federated": Entry(
            "recipes.adadp_federated:compare",
            "ADADP: clients that tune their rates, by class pairs, against tuned SGD and Adam (figures 1 to 3)",
        ),
        "adadp-gmm": Entry(
            "recipes.adadp_gmm:compare",
            "ADADP: a Gaussian mixture by private variational inference (supplement, fig. 1)",
        ),
        "adadp-mnist": Entry(
            "recipes.adadp_mnist:compare",
            "ADADP: against tuned DP-Adam and carried DP-SGD on MNIST (figures 4 and 5)",
        ),
        "adadp-rates": Entry("recipes.self_tuning:rates", "ours: ADADP from three initial rates on MNIST"),
        "adadp-thresholds": Entry(
            "recipes.self_tuning:thresholds", "ours: ADADP from four initial thresholds on MNIST"
        ),
        "adadp-tolerance": Entry(
            "recipes.self_tuning:tolerance", "ours: the tolerance of the plan and its multiples"
        ),
        "default": Entry(
            "recipes.self_tuning:default", "ours: the default, nothing set, against DP-Adam's best rate"
        ),
        "dp-ftrl-cifar10": Entry(
            "recipes.dp_ftrl:cifar", "DP-FTRL: trees against DP-SGD on CIFAR-10 at true epsilons (table 6)"
        ),
        "dp-ftrl-emnist": Entry(
            "recipes.dp_ftrl:emnist", "DP-FTRL: trees against DP-SGD on EMNIST at true epsilons (table 6)"
        ),
        "dp-ftrl-epsilons": Entry(
            "recipes.dp_ftrl_epsilons:epsilons",
            "DP-FTRL: every printed epsilon recomputed, and what the runs really cost (tables 3 to 7)",
        ),
        "dp-ftrl-federated": Entry(
            "recipes.dp_ftrl_federated:roles_and_epsilons",
            "DP-FTRL: user-level epsilons, and next words on Shakespeare's roles (tables 3 to 5)",
        ),
        "dp-ftrl-mnist": Entry(
            "recipes.dp_ftrl:mnist", "DP-FTRL: trees against DP-SGD on MNIST at true epsilons (table 6)"
        ),
        "one-run": Entry(
            "recipes.one_run:one_run",
            "ours: one untuned run between the grid a user could pay for and an oracle, on 22 pairs of data and model",
        ),
        "oso-agnews": Entry(
            "recipes.oso_grids:agnews",
            "OSO: grids of five methods under one budget each, AG News (tables 10 and 13)",
        ),
        "oso-gradients": Entry(
            "recipes.oso_gradients:gradients",
            "OSO: clipping bias against noise, and what q costs (figures 1 and 2)",
        ),
        "oso-mnist": Entry(
            "recipes.oso_grids:mnist",
            "OSO: grids of five methods under one budget each, MNIST (tables 8 and 11)",
        ),
        "private-selection": Entry(
            "recipes.private_selection:selection",
            "ADADP: one run that tunes itself against the best of many by private selection (supplement, table 1)",
        ),
        "records": Entry(
            "recipes.records:records",
            "ours: `sordino train` with nothing set, beside the best published without pre-training, on images",
        ),
    },
    unknown="there is no {kind} {name!r}: there are {names}",
)

TABLES = {
    "methods": METHODS,
    "clipping policies": CLIPS,
    "noise mechanisms": NOISES,
    "step rules": STEPS,
    "rate controllers": RATES,
    "algorithms": ALGORITHMS,
    "servers": SERVERS,
    "local rules": LOCAL_RULES,
    "engines": ENGINES,
    "partitions": PARTITIONS,
    "participations": PARTICIPATIONS,
    "samplings": SAMPLINGS,
    "accountants": ACCOUNTANTS,
    "stoppings": STOPPINGS,
    "models": MODELS,
    "data sets": DATA_SETS,
    "features": FEATURES,
    "recipes": RECIPES,
}

if __name__ == "__main__":
    for title in sys.argv[1:] or TABLES:
        print(f"<!-- names: {title} -->\n{TABLES[title].markdown()}\n<!-- end -->\n")

"""Details that the papers omit, or where this project differs, as sentences. RM: rank merge. FF: FastFill."""

from ray_backfill.recipes.table import FF, RM

# For all recipes.
IN_ALL = (
    "Training images are randomly shifted, zoomed and mirrored. FF's reference code (NVIDIA's ResNet-50 v1.5) uses "
    "random resized crops; RM does not say what it uses.",
    "FF omits label smoothing, the kind of momentum, weight decay of BatchNorm and the last layer of its backbones: "
    "here as in its public code (0.1, without Nesterov, included, the mean over positions of the last ReLU, and a "
    "classifier without bias).",
    "The side-information model is SimCLR trained on the old model's images, as in FCT. RM trained its own on ImageNet "
    "for all data sets.",
    "Compatible backbones (BCT, RACT) are trained like the new model. RM used the authors' code.",
)
# Name of the paper -> sentences.
BY_PAPER = {
    RM.name: (
        "RM does not say how its backbones are trained: here for 100 epochs, like FF's on ImageNet.",
        "RM does not give the batches of psi and rho: here 256 classes with 4 items each, 1024 items as elsewhere.",
    ),
    FF.name: (
        "FF does not say over how many moments it averages: here 22, as in its public configuration (20 between 0 "
        "and 1).",
        "FF does not give its lambda: here 0.5, as in that configuration, which also weighs disc by 1.",
        "FF's h learns from new views of the images at every step, ours from a few stored views (--embed.views).",
    ),
}
_ON_FACES = (
    "FF normalizes the features of faces. The cosine distance used here gives the same ranking as l2 on normalized "
    "features. FF's h learns from normalized features, ours from features that are not normalized.",
    "FF does not give the size of face embeddings: here 128.",
)
BY_RECIPE = {
    "cifar100_18_to_vit": (
        "RM does not say how the ViT was trained, or from which weights: here from scratch, with the ResNets' schedule "
        "at a tenth of their learning rate, which is untested. Nor how it makes 128 dimensions: here by a linear layer "
        "on the class token, without ViT's pooler.",
    ),
    "places365_18_to_50": ("The new model differs from that of table 1, but RM prints the same mAP (23.4).",),
    "vggface2": (*_ON_FACES, "FF does not say which identities the old model learns: here the first 863."),
    "vggface2_biased": (
        *_ON_FACES,
        "FF does not name the networks: here those of its other experiment on faces.",
        "FF's gallery has 250 women and 250 men of the training set, ours has the 500 people of the test set.",
    ),
    "gldv2": ("RM has 750 queries but does not say which: here those of the private set.",),
}

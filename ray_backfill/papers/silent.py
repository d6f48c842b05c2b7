"""Where the papers do not say what they did, or where ours differs, as sentences. RM: rank merge. FF: FastFill."""

from ray_backfill.recipes.published import FF, RM

# In all recipes.
IN_ALL = (
    "Views of training images are shifted, zoomed and mirrored. FF's reference code (NVIDIA's ResNet-50 v1.5) takes "
    "random resized crops; RM says nothing.",
    "Weight decay includes BatchNorm, which that code leaves out.",
    "FF names neither label smoothing (here 0.1, as in that code) nor the kind of momentum (here Nesterov's).",
    "The model of side information is SimCLR on the old model's images, as in FCT. RM trained its own on ImageNet for "
    "every data set.",
    "Compatible backbones (BCT, RACT) are trained like the new model. RM used the authors' code.",
)
# By the paper's name.
BY_PAPER = {
    RM.name: (
        "RM does not say how its backbones are trained: here for 100 epochs, as FF's on ImageNet.",
        "RM does not say how psi and rho are batched: here 256 classes of 4 items, 1024 as elsewhere.",
    ),
    FF.name: (
        "FF does not say how many moments its averages take: here 11.",
        "FF does not give its lambda: here 1.",
    ),
}
_ON_FACES = (
    "FF normalizes the features of faces: under the cosine distance ours rank as normalized ones do under l2. Its h "
    "learns from normalized features, ours from features as they are.",
    "FF does not say how large embeddings of faces are: here 128.",
)
BY_RECIPE = {
    "cifar100_18_to_vit": (
        "RM does not say how the ViT was trained, nor from which weights: here from scratch, by the ResNets' schedule "
        "at a tenth of their learning rate, which nobody has tried.",
    ),
    "places365_18_to_50": ("The new model is another one than in table 1, yet RM prints the same mAP (23.4).",),
    "vggface2": (*_ON_FACES, "FF does not say which identities the old model learns: here the first 863."),
    "vggface2_biased": (
        *_ON_FACES,
        "FF does not name the networks: here those of its other experiment on faces.",
        "FF's gallery has 250 women and 250 men of the training set, ours the 500 people of the test set.",
    ),
    "gldv2": ("RM has 750 queries and does not say which: here those of the private set.",),
}

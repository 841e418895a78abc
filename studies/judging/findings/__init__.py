"""What a study tells beside its front: how fine its samples are, which groups are sensitive, what other levels take."""

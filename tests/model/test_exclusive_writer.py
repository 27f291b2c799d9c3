from millrace.model.exclusive_writer import ExclusiveWriter


def test_a_writer_is_told_by_its_id_and_its_numbers() -> None:
    assert str(ExclusiveWriter(21, 3, "till-7", 0)) == "writer 'till-7' (number 21, epoch 3)"
    assert str(ExclusiveWriter(22, 1, "", 0)) == "a writer without an id (number 22, epoch 1)"

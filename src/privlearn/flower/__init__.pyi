from privlearn.flower.secure_sum import SecureSum as SecureSum
from privlearn.flower.summation import InTheClear as InTheClear
from privlearn.flower.teacher_client import teacher_app as teacher_app
from privlearn.flower.teachers import FlowerTeachers as FlowerTeachers

from privlearn.flower.secure_sum import SecureSum as SecureSum
from privlearn.flower.site_shares import SiteShares as SiteShares
from privlearn.flower.summation import InTheClear as InTheClear
from privlearn.flower.summation import Summation as Summation
from privlearn.flower.summation import Total as Total
from privlearn.flower.teacher_client import teacher_app as teacher_app
from privlearn.flower.teachers import FlowerTeachers as FlowerTeachers
